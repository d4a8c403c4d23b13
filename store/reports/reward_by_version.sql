-- title: Reward by weight version
-- about: Mean, spread and extremes of the rewards of rollouts that went well; a rollout belongs to the newest version that made a token of it.
-- plot: line x=version y=mean_reward spread=reward_spread series=run_id,mode
SELECT
    run_id, mode, assumeNotNull(max_weight_version) AS version, count() AS rollouts, avg(reward) AS mean_reward,
    stddevPop(reward) AS reward_spread, quantileExact(0.1)(reward) AS p10, quantileExact(0.9)(reward) AS p90,
    min(reward) AS worst, max(reward) AS best
FROM rollouts
WHERE outcome = 'ok' AND max_weight_version IS NOT NULL
GROUP BY run_id, mode, version
ORDER BY run_id, mode, version
