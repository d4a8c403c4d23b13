-- view: reward_by_version
-- title: Reward by weight version
-- about: Mean, spread and extremes of the rewards of rollouts that went well; a rollout belongs to the newest version that made a token of it.
-- plot: line x=version y=mean_reward spread=reward_spread series=run,mode
SELECT
    run, mode, assumeNotNull(version_max) AS version, count() AS rollouts, avg(reward) AS mean_reward,
    stddevPop(reward) AS reward_spread, quantileExact(0.1)(reward) AS p10, quantileExact(0.9)(reward) AS p90,
    min(reward) AS worst, max(reward) AS best
FROM rollouts
WHERE outcome = 'ok' AND version_max IS NOT NULL
GROUP BY run, mode, version
ORDER BY run, mode, version
