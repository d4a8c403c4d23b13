-- title: Staleness of trained tokens, and effective sample size
-- about: Number of versions between the one that sampled a token and the one trained, over the trained tokens of each step of a model. ess: the step's effective sample size as a share of its tokens.
-- plot: line x=step y=mean_staleness,max_staleness,ess series=run_id,model
SELECT
    u.run_id AS run_id, u.model AS model, u.step AS step, any(u.version) AS version, sum(u.num_tokens) AS tokens,
    sum(u.lag * u.num_tokens) / sum(u.num_tokens) AS mean_staleness, max(u.lag) AS max_staleness,
    sumIf(u.num_tokens, u.lag = 0) / sum(u.num_tokens) AS fresh_share,
    any(if(mapContains(s.metrics, 'off_policy/ess'), s.metrics['off_policy/ess'], NULL)) AS ess
FROM
(
    SELECT run_id, model, step, version, toInt64(version) - 1 - token_version AS lag, toUInt64(num) AS num_tokens
    FROM training_rollouts ARRAY JOIN mapKeys(version_tokens) AS token_version, mapValues(version_tokens) AS num
    WHERE trained
) AS u
INNER JOIN training_steps AS s ON u.run_id = s.run_id AND u.model = s.model AND u.step = s.step
GROUP BY run_id, model, step
ORDER BY run_id, model, step
