-- title: The most improved and the most regressed tasks between two versions
-- about: By model: mean reward of a task's rollouts up to its version before, and from version after on; by default the first and the last third. A task published again (name@pass) is one task.
-- parameter: before Int64 = -1
-- parameter: after Int64 = -1
-- plot: bar x=name y=reward_before,reward_after series=model
WITH bounds AS
(
    SELECT run_id, model, if({before:Int64} >= 0, {before:Int64}, toInt64(max(version) / 3)) AS early,
        if({after:Int64} >= 0, {after:Int64}, toInt64(max(version) * 2 / 3)) AS late
    FROM counted_rewards GROUP BY run_id, model
)
SELECT
    r.run_id AS run_id, r.model AS model, splitByChar('@', r.task_id)[1] AS name, avgIf(r.counted_reward, r.version <= b.early) AS reward_before,
    avgIf(r.counted_reward, r.version >= b.late) AS reward_after, reward_after - reward_before AS change,
    countIf(r.version <= b.early) AS rollouts_before, countIf(r.version >= b.late) AS rollouts_after
FROM counted_rewards AS r INNER JOIN bounds AS b ON r.run_id = b.run_id AND r.model = b.model
WHERE r.outcome = 'ok' AND r.mode = 'train'
GROUP BY run_id, model, name
HAVING rollouts_before > 0 AND rollouts_after > 0
ORDER BY run_id, model, change DESC, name
