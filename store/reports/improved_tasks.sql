-- title: The most improved and the most regressed tasks between two versions
-- about: Mean reward of a task's rollouts for each model, in training and in each evaluation, up to its version before, and from version after on; by default the first and the last third. A task published again, in another pass or at another version, is one task. mode and evaluation choose train, eval or one evaluation; empty: all.
-- parameter: before Int64 = -1
-- parameter: after Int64 = -1
-- parameter: mode String =
-- parameter: evaluation String =
-- plot: bar x=name y=reward_before,reward_after series=model,mode,evaluation
SELECT
    run_id, model, mode, evaluation, name, sumIf(total, version <= early) / rollouts_before AS reward_before,
    sumIf(total, version >= late) / rollouts_after AS reward_after, reward_after - reward_before AS change,
    sumIf(num, version <= early) AS rollouts_before, sumIf(num, version >= late) AS rollouts_after
FROM
(
    SELECT
        run_id, model, mode, evaluation, name, version, total, num,
        max(version) OVER (PARTITION BY run_id, model, mode, evaluation) AS newest,
        if({before:Int64} >= 0, {before:Int64}, toInt64(newest / 3)) AS early,
        if({after:Int64} >= 0, {after:Int64}, toInt64(newest * 2 / 3)) AS late
    FROM
    (
        SELECT run_id, model, mode, evaluation, replaceRegexpOne(task_id, '@[^@]*$', '') AS name, version,
            sum(assumeNotNull(counted_reward)) AS total, count() AS num
        FROM counted_rewards
        WHERE (outcome = 'ok' OR mode = 'eval') AND {mode:String} IN ('', mode)
            AND {evaluation:String} IN ('', evaluation)
        GROUP BY run_id, model, mode, evaluation, task_id, version
    )
)
GROUP BY run_id, model, mode, evaluation, name
HAVING rollouts_before > 0 AND rollouts_after > 0
ORDER BY run_id, model, mode DESC, evaluation, change DESC, name
