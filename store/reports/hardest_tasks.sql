-- title: The tasks that pass most seldom
-- about: Rollouts of each task in training and in each evaluation, and how many pass: with a reward of solved or more. max_passes=0 shows the tasks that have never passed. Rewards are those that count in reward_by_version, for the model that agents call by name. A failed rollout is no pass, even where it does not count in mean_reward. A task published again, in another pass or at another version, is one task. mode and evaluation choose train, eval or one evaluation; empty: all.
-- parameter: solved Float64 = 1
-- parameter: max_passes Int64 = -1
-- parameter: mode String =
-- parameter: evaluation String =
SELECT
    run_id, model, mode, evaluation, name, countIf(counted >= {solved:Float64}) AS passes,
    count() AS rollouts, countIf(outcome != 'ok') AS failed, avg(counted) AS mean_reward, max(counted) AS best,
    argMax(rollout_id, ended_at) AS newest_rollout
FROM
(
    SELECT r.run_id AS run_id, t.model AS model, r.mode AS mode, r.evaluation AS evaluation,
        replaceRegexpOne(r.task_id, '@[^@]*$', '') AS name, r.rollout_id AS rollout_id, r.outcome AS outcome,
        r.ended_at AS ended_at, c.counted AS counted
    FROM (
        SELECT run_id, rollout_id, task_id, mode, evaluation, outcome, ended_at FROM rollouts
        WHERE {mode:String} IN ('', mode) AND {evaluation:String} IN ('', evaluation)
    ) AS r
    LEFT ANY JOIN (SELECT run_id, rollout_id, model FROM tasks) AS t
        ON r.run_id = t.run_id AND r.rollout_id = t.rollout_id
    LEFT ANY JOIN (
        SELECT run_id, rollout_id, model, toNullable(counted_reward) AS counted FROM counted_rewards
    ) AS c ON r.run_id = c.run_id AND r.rollout_id = c.rollout_id AND t.model = c.model
)
GROUP BY run_id, model, mode, evaluation, name
HAVING {max_passes:Int64} = -1 OR passes <= {max_passes:Int64}
ORDER BY run_id, model, mode DESC, evaluation, passes / rollouts, mean_reward NULLS FIRST, name
