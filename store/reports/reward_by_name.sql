-- title: Rewards by name
-- about: Mean, standard error and extremes of each named reward by weight version, for each model: what a function of rewards, a grader, a judge or an environment gave under a name. Over the rollouts that count in reward_by_version and have a reward of that name. A failed rollout that counts as 0 there counts as 0 here, under each name that all others of its evaluation, or of the training, have. Versions, standard errors and intervals as in reward_by_version.
-- plot: line x=version y=mean_reward spread=standard_error error=standard_error bounds=worst,best series=run_id,model,mode,evaluation,name
SELECT
    run_id, model, mode, evaluation, name, version, sum(num) AS rollouts, sum(total) / rollouts AS mean_reward,
    if(count() > 1, sqrt(count() / (count() - 1) * greatest(0,
        sum(total * total) - 2 * mean_reward * sum(total * num) + mean_reward * mean_reward * sum(num * num))) / rollouts, NULL)
        AS standard_error,
    min(smallest) AS worst, max(largest) AS best, count() AS tasks, min(is_binary) AS is_success_rate
FROM
(
    SELECT run_id, model, mode, evaluation, version, task_id, named.1 AS name, count() AS num, sum(named.2) AS total,
        min(named.2) AS smallest, max(named.2) AS largest, min(named.2 IN (0, 1)) AS is_binary
    FROM
    (
        SELECT c.run_id AS run_id, c.model AS model, c.mode AS mode, c.evaluation AS evaluation, c.version AS version,
            c.task_id AS task_id, CAST(r.rewards, 'Array(Tuple(String, Float64))') AS earned,
            groupArrayIntersectIf(mapKeys(r.rewards), c.outcome = 'ok' AND notEmpty(r.rewards))
                OVER (PARTITION BY c.run_id, c.model, c.mode, c.evaluation) AS names,
            if(c.outcome = 'ok', earned, arrayMap(each -> (each, 0.), names)) AS counted
        FROM counted_rewards AS c
        LEFT ANY JOIN (SELECT run_id, rollout_id, rewards FROM rollouts WHERE notEmpty(rewards)) AS r
            ON c.run_id = r.run_id AND c.rollout_id = r.rollout_id
    )
    ARRAY JOIN counted AS named
    GROUP BY run_id, model, mode, evaluation, version, task_id, name
)
GROUP BY run_id, model, mode, evaluation, name, version
ORDER BY run_id, model, mode, evaluation, name, version
