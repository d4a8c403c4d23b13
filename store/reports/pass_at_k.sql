-- title: pass@k and the variance within groups, by weight version of each model
-- about: The unbiased estimator of Chen et al. (arXiv:2107.03374), averaged over the tasks with at least k rollouts, over the rollouts that count in reward_by_version, with their rewards there: one passes at a reward of solved or more, and one that failed does not pass. The note tells if that threshold does not fit the rewards. A group belongs to the newest version that answered it. GRPO learns nothing from a group without variance.
-- parameter: solved Float64 = 1
-- plot: line x=version y=pass_1,pass_2,pass_4,pass_8 series=run_id,model,mode,evaluation
WITH
    (n, c, k) -> if(n - c < k, 1., 1 - arrayProduct(arrayConcat([1.], arrayMap(i -> 1 - k / i, range(toUInt64(n - c + 1), toUInt64(n + 1)))))) AS pass
SELECT
    * EXCEPT (lowest, highest),
    {pass_note} AS note
FROM
(
    SELECT
        run_id, model, mode, evaluation, version, count() AS tasks, sum(n) AS rollouts,
        avg(variance) AS mean_variance, countIf(n > 1 AND variance = 0) / count() AS share_without_variance,
        avg(c / n) AS pass_1, avgOrNullIf(pass(n, c, 2), n >= 2) AS pass_2,
        avgOrNullIf(pass(n, c, 4), n >= 4) AS pass_4, avgOrNullIf(pass(n, c, 8), n >= 8) AS pass_8,
        min(min(low)) OVER (PARTITION BY run_id, model, mode, evaluation) AS lowest,
        max(max(high)) OVER (PARTITION BY run_id, model, mode, evaluation) AS highest
    FROM
    (
        SELECT run_id, model, mode, evaluation, task_id, max(r.version) AS version, toInt64(count()) AS n,
            toInt64(countIf(outcome = 'ok' AND counted_reward >= {solved:Float64})) AS c, varPop(counted_reward) AS variance,
            minIf(counted_reward, outcome = 'ok') AS low, maxIf(counted_reward, outcome = 'ok') AS high
        FROM counted_rewards AS r GROUP BY run_id, model, mode, evaluation, task_id
    )
    GROUP BY run_id, model, mode, evaluation, version
)
ORDER BY run_id, model, mode, evaluation, version
