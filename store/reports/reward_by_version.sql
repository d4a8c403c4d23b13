-- title: Reward by weight version
-- about: Mean, spread, standard error and extremes of the rewards of rollouts that went well; a rollout belongs to the newest version that made a token of it.
-- plot: line x=version y=mean_reward spread=reward_spread error=standard_error bounds=worst,best series=run_id,mode,evaluation
SELECT
    run_id, mode, evaluation, assumeNotNull(max_weight_version) AS version, count() AS rollouts, avg(reward) AS mean_reward,
    stddevPop(reward) AS reward_spread, if(count() > 1, stddevSamp(reward) / sqrt(count()), NULL) AS standard_error,
    quantileExact(0.1)(reward) AS p10, quantileExact(0.9)(reward) AS p90,
    min(reward) AS worst, max(reward) AS best
FROM rollouts
WHERE outcome = 'ok' AND max_weight_version IS NOT NULL
GROUP BY run_id, mode, evaluation, version
ORDER BY run_id, mode, evaluation, version
