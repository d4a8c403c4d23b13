-- title: Drift between engine and learner, and truncated answers, by step of each model
-- about: k3_kl: mean of exp(d) - d - 1, d being the learner's log-probability minus the engine's. ppo_kl and clip_share belong to the update. truncated_share: share of the model's calls in trained rollouts that ended at a length limit.
-- plot: line x=step y=k3_kl,ppo_kl,clip_share,truncated_share series=run_id,model
SELECT
    s.run_id AS run_id, s.model AS model, s.step AS step, s.version AS version, if(mapContains(s.metrics, 'rollout_corr/k3_kl'), s.metrics['rollout_corr/k3_kl'], NULL) AS k3_kl, if(mapContains(s.metrics, 'actor/ppo_kl'), s.metrics['actor/ppo_kl'], NULL) AS ppo_kl,
    if(mapContains(s.metrics, 'actor/pg_clipfrac'), s.metrics['actor/pg_clipfrac'], NULL) AS clip_share, if(mapContains(s.metrics, 'actor/grad_norm'), s.metrics['actor/grad_norm'], NULL) AS grad_norm, if(mapContains(s.metrics, 'actor/entropy'), s.metrics['actor/entropy'], NULL) AS entropy,
    if(mapContains(s.metrics, 'response_length/clip_ratio'), s.metrics['response_length/clip_ratio'], NULL) AS truncated_share
FROM training_steps AS s
ORDER BY run_id, model, step
