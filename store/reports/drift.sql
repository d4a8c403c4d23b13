-- title: Drift between engine and learner, and answers cut off, by step of each model
-- about: k3_kl: mean of exp(d) - d - 1, d being the learner's log-probability less the engine's; ppo_kl and clip_share: of the update; truncated_share: calls of the model in the rollouts trained on that ended at a length.
-- plot: line x=step y=k3_kl,ppo_kl,clip_share,truncated_share series=run_id,model
SELECT
    s.run_id AS run_id, s.model AS model, s.step AS step, s.version AS version, if(mapContains(s.metrics, 'rollout_corr/k3_kl'), s.metrics['rollout_corr/k3_kl'], NULL) AS k3_kl, if(mapContains(s.metrics, 'actor/ppo_kl'), s.metrics['actor/ppo_kl'], NULL) AS ppo_kl,
    if(mapContains(s.metrics, 'actor/pg_clipfrac'), s.metrics['actor/pg_clipfrac'], NULL) AS clip_share, if(mapContains(s.metrics, 'actor/grad_norm'), s.metrics['actor/grad_norm'], NULL) AS grad_norm, if(mapContains(s.metrics, 'actor/entropy'), s.metrics['actor/entropy'], NULL) AS entropy,
    r.truncated_share AS truncated_share
FROM training_steps AS s
LEFT JOIN
(
    SELECT u.run_id AS run_id, u.model AS model, u.step AS step, countIf(c.finish_reason = 'length') / count() AS truncated_share
    FROM training_rollouts AS u
    INNER JOIN model_calls AS c
        ON u.run_id = c.run_id AND u.rollout_id = c.rollout_id AND u.execution_id = c.execution_id AND u.model = c.model
    WHERE u.trained GROUP BY run_id, model, step
) AS r ON s.run_id = r.run_id AND s.model = r.model AND s.step = r.step
ORDER BY run_id, model, step
