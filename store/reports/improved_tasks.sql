-- title: The most improved and the most regressed tasks between two versions
-- about: Mean reward of a task's rollouts for each model, up to its version before, and from version after on; by default the first and the last third. A task published again (name@pass) is one task.
-- parameter: before Int64 = -1
-- parameter: after Int64 = -1
-- plot: bar x=name y=reward_before,reward_after series=model
SELECT
    run_id, model, name, sumIf(total, version <= early) / rollouts_before AS reward_before,
    sumIf(total, version >= late) / rollouts_after AS reward_after, reward_after - reward_before AS change,
    sumIf(num, version <= early) AS rollouts_before, sumIf(num, version >= late) AS rollouts_after
FROM
(
    SELECT
        run_id, model, name, version, total, num,
        if({before:Int64} >= 0, {before:Int64}, toInt64(max(version) OVER (PARTITION BY run_id, model) / 3)) AS early,
        if({after:Int64} >= 0, {after:Int64}, toInt64(max(version) OVER (PARTITION BY run_id, model) * 2 / 3)) AS late
    FROM
    (
        SELECT run_id, model, splitByChar('@', task_id)[1] AS name, version, sum(assumeNotNull(counted_reward)) AS total,
            count() AS num
        FROM counted_rewards WHERE outcome = 'ok' AND mode = 'train' GROUP BY run_id, model, task_id, version
    )
)
GROUP BY run_id, model, name
HAVING rollouts_before > 0 AND rollouts_after > 0
ORDER BY run_id, model, change DESC, name
