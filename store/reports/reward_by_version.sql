-- title: Reward by weight version
-- about: Mean, spread, standard error and extremes of the rewards that count, for each model. Training: a rollout that the agent failed is left out, or counts as 0 under failed_rollouts: zero. Evaluation: every failed rollout counts as 0. A rollout whose reward function did not end counts nowhere. A rollout counts for each model that answered it, with the reward that its task names, as in a suite with one of its own, else with the one that the model is trained on. It belongs to the version of the model that its evaluation is pinned to, else to the newest that sampled one of its tokens. The standard error is over tasks, because the rollouts of one task are not independent (arXiv:2411.00640). `lightningbus report` adds the bounds low_95 and high_95 of the 95 % interval: Wilson score where all rewards are 0 or 1, with the effective number of answers p(1 − p) / standard_error², at least the tasks and at most the rollouts; else 1.96 standard errors to each side. reward_spread is the standard deviation over n, not n - 1.
-- plot: line x=version y=mean_reward spread=standard_error error=standard_error bounds=worst,best series=run_id,model,mode,evaluation
SELECT
    run_id, model, mode, evaluation, version, sum(num) AS rollouts, sum(total) / rollouts AS mean_reward,
    stddevPopMerge(spread) AS reward_spread,
    if(count() > 1, sqrt(count() / (count() - 1) * greatest(0,
        sum(total * total) - 2 * mean_reward * sum(total * num) + mean_reward * mean_reward * sum(num * num))) / rollouts, NULL)
        AS standard_error,
    quantileExactMerge(0.1)(low) AS p10, quantileExactMerge(0.9)(high) AS p90,
    min(smallest) AS worst, max(largest) AS best, count() AS tasks, min(is_binary) AS is_success_rate
FROM
(
    SELECT run_id, model, mode, evaluation, version, task_id, count() AS num, sum(assumeNotNull(counted_reward)) AS total,
        stddevPopState(assumeNotNull(counted_reward)) AS spread, min(assumeNotNull(counted_reward)) AS smallest,
        max(assumeNotNull(counted_reward)) AS largest,
        quantileExactState(0.1)(assumeNotNull(counted_reward)) AS low,
        quantileExactState(0.9)(assumeNotNull(counted_reward)) AS high,
        min(assumeNotNull(counted_reward) IN (0, 1)) AS is_binary
    FROM counted_rewards GROUP BY run_id, model, mode, evaluation, version, task_id
)
GROUP BY run_id, model, mode, evaluation, version
ORDER BY run_id, model, mode, evaluation, version
