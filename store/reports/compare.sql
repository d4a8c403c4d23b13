-- title: Comparison of two runs or two versions
-- about: a and b are runs, and `lightningbus report compare A B` reads each in its own store; version_a and version_b, if given, restrict them to rollouts of that version. The version is one of model, which is by default the model that agents call by name. Rewards are those that count in reward_by_version, or those of the name reward. The versions of a side are pooled unless version_a or version_b chooses one. The standard error is over tasks: a task that is published again, in another pass or evaluation, is one task. Its difference is that of the difference of two means, sqrt(a² + b²).
-- parameter: a String
-- parameter: b String
-- parameter: version_a Int64 = -1
-- parameter: version_b Int64 = -1
-- parameter: model String =
-- parameter: mode String = train
-- parameter: evaluation String =
-- parameter: reward String =
WITH metrics AS
(
    SELECT side, arrayJoin([
        ('01 rollouts', toFloat64(count())), ('02 ended well', countIf(outcome = 'ok') / count()),
        ('03 mean reward', avgIf(counted, isNotNull(counted)) AS mean),
        ('04 standard error of the mean reward', if(uniqExactIf(question, isNotNull(counted)) AS tasks > 1,
            sqrt(tasks / (tasks - 1) * greatest(0, sumIf(of_task * of_task / num_of_task, isNotNull(counted))
                - 2 * mean * sumIf(of_task, isNotNull(counted)) + mean * mean * sumIf(num_of_task, isNotNull(counted))))
                / countIf(isNotNull(counted)), NULL)),
        ('05 reward spread', stddevPopIf(counted, isNotNull(counted))),
        ('06 mean reward of the newest version', avgIf(counted, isNotNull(counted) AND version = newest)),
        ('07 rollouts of the newest version', toFloat64(countIf(version = newest))),
        ('08 mean seconds', avg(date_diff('microsecond', started_at, ended_at)) / 1e6),
        ('09 mean model seconds', avg(model_seconds)), ('10 mean calls', avg(num_calls)),
        ('11 mean tokens sampled', avg(response_tokens)), ('12 calls cut off', sum(num_truncated) / greatest(sum(num_calls), 1)),
        ('13 needed another attempt', countIf(attempt > 1) / count()), ('14 newest version', toFloat64(any(newest))),
        ('15 versions', toFloat64(uniqExact(version)))
    ]) AS one
    FROM
    (
        SELECT *, max(version) OVER (PARTITION BY side) AS newest,
            sum(ifNull(counted, 0)) OVER (PARTITION BY side, question) AS of_task,
            countIf(isNotNull(counted)) OVER (PARTITION BY side, question) AS num_of_task
        FROM (SELECT *, arrayJoin(arrayFilter(one -> one != '', [
            if(run_id = {a:String} AND {version_a:Int64} IN (-1, version), 'a', ''),
            if(run_id = {b:String} AND {version_b:Int64} IN (-1, version), 'b', '')])) AS side
            FROM (
                SELECT r.run_id AS run_id, replaceRegexpOne(task_id, '@[^@]*$', '') AS question, outcome, attempt, started_at, ended_at, model_seconds, num_calls,
                    response_tokens, num_truncated,
                    if({model:String} = '', max_weight_version, toNullable(newest_versions[{model:String}])) AS version,
                    if({reward:String} = '' OR outcome != 'ok', c.counted,
                        if(mapContains(rewards, {reward:String}), toNullable(rewards[{reward:String}]), NULL)) AS counted
                FROM (
                    SELECT * FROM rollouts
                    WHERE run_id IN ({a:String}, {b:String}) AND mode = {mode:String} AND evaluation = {evaluation:String}
                        AND ({model:String} = '' OR mapContains(newest_versions, {model:String}))
                ) AS r
                LEFT ANY JOIN (
                    SELECT run_id, rollout_id, toNullable(counted_reward) AS counted FROM counted_rewards
                    WHERE run_id IN ({a:String}, {b:String}) AND mode = {mode:String} AND evaluation = {evaluation:String}
                        AND if({model:String} = '', (run_id, rollout_id, model) IN (
                            SELECT run_id, rollout_id, model FROM tasks WHERE run_id IN ({a:String}, {b:String})
                        ), model = {model:String})
                ) AS c ON r.run_id = c.run_id AND r.rollout_id = c.rollout_id
            ))
    )
    GROUP BY side
)
SELECT
    concat({a:String}, ' : ', {b:String}) AS run_id, substring(one.1, 4) AS figure,
    anyIf(one.2, side = 'a') AS a, anyIf(one.2, side = 'b') AS b,
    if(startsWith(figure, 'standard error'), sqrt(a * a + b * b), b - a) AS difference
FROM metrics
GROUP BY one.1
ORDER BY one.1
