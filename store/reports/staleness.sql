-- title: Versions between sampling and training, and the effective sample size
-- about: Per step of a model, over the tokens trained on: how many versions lie between the one that made the token and the one trained; ess is the step's effective sample size as a share of its tokens.
-- plot: line x=step y=mean_staleness,max_staleness,ess series=run_id,model
SELECT
    run_id, model, step, any(version) AS version, count() AS tokens, avg(lag) AS mean_staleness, max(lag) AS max_staleness,
    countIf(lag = 0) / count() AS fresh_share, any(ess) AS ess
FROM
(
    SELECT u.run_id AS run_id, u.model AS model, u.step AS step, u.version AS version, toInt64(u.version) - 1 - token_version AS lag,
        if(mapContains(s.metrics, 'off_policy/ess'), s.metrics['off_policy/ess'], NULL) AS ess
    FROM training_rollouts AS u
    INNER JOIN training_steps AS s ON u.run_id = s.run_id AND u.model = s.model AND u.step = s.step
    INNER JOIN model_calls AS c
        ON u.run_id = c.run_id AND u.rollout_id = c.rollout_id AND u.execution_id = c.execution_id AND u.model = c.model
    INNER JOIN completions AS a ON u.run_id = a.run_id AND u.rollout_id = a.rollout_id AND u.execution_id = a.execution_id
        AND c.call = a.call
    ARRAY JOIN a.token_versions AS token_version
    WHERE u.trained
)
GROUP BY run_id, model, step
ORDER BY run_id, model, step
