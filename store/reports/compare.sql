-- title: Comparison of two runs or two versions
-- about: a and b are runs, and `lightningbus report compare A B` reads each in its own store; version_a and version_b, if given, restrict them to rollouts of that version. The version is one of model, which is by default the model that agents call by name: the one that an evaluation is pinned to, else the newest that sampled a token. Rewards are those that count in reward_by_version, or those of the name reward as in reward_by_name. The versions of a side are pooled unless version_a or version_b chooses one. The standard error is over tasks: a task that is published again, in another pass or evaluation, is one task. Its difference is that of the difference of two means, sqrt(a² + b²). Tasks of both sides, the same name with the same input, are paired: the mean reward of tasks in both is over the means of tasks, the standard error of its difference is that of their paired differences. compare_tasks has them one by one. No figure has the noise between trainings: compare several seeds of each setting.
-- parameter: a String
-- parameter: b String
-- parameter: version_a Int64 = -1
-- parameter: version_b Int64 = -1
-- parameter: model String =
-- parameter: mode String = train
-- parameter: evaluation String =
-- parameter: reward String =
WITH {compared_rollouts},
by_task AS
(
    SELECT side, question, max(one_version) AS last, groupUniqArrayIf(one_version, one_version >= 0) AS versions,
        argMax((size, size_counted, earned), one_version) AS of_last,
        sum(size) AS num, sum(size_counted) AS num_counted, sum(earned) AS total, stddevPopMergeState(spreads) AS spread,
        sum(sums.1) AS num_ok, sum(sums.2) AS num_retried, sum(sums.3) AS seconds, sum(sums.4) AS model_seconds,
        sum(sums.5) AS num_calls, sum(sums.6) AS num_tokens, sum(sums.7) AS num_truncated
    FROM
    (
        SELECT side, question, toInt64(ifNull(version, -1)) AS one_version, toFloat64(count()) AS size,
            toFloat64(count(counted)) AS size_counted, ifNull(sum(counted), 0.) AS earned, stddevPopState(counted) AS spreads,
            (countIf(is_ok), countIf(is_retried), sum(seconds), sum(model_seconds), sum(num_calls), sum(response_tokens),
                sum(num_truncated)) AS sums
        FROM sided GROUP BY side, question, one_version
    )
    GROUP BY side, question
),
metrics AS
(
    SELECT side, arrayJoin([
        ('01 rollouts', sum(num) AS rollouts), ('02 rollouts that count', sum(num_counted)), ('03 ended well', sum(num_ok) / rollouts),
        ('04 mean reward', sum(total) / sum(num_counted) AS mean),
        ('05 standard error of the mean reward', if(countIf(num_counted > 0) AS tasks > 1,
            sqrt(tasks / (tasks - 1) * greatest(0, sum(total * total) - 2 * mean * sum(total * num_counted)
                + mean * mean * sum(num_counted * num_counted))) / sum(num_counted), NULL)),
        ('06 reward spread', stddevPopMerge(spread)),
        ('07 mean reward of the newest version', arraySum(one -> one.2.3, newest_tasks) / arraySum(one -> one.2.2, newest_tasks)),
        ('08 rollouts of the newest version', arraySum(one -> one.2.1, newest_tasks)),
        ('09 mean seconds', sum(seconds) / rollouts), ('10 mean model seconds', sum(model_seconds) / rollouts),
        ('11 mean calls', sum(num_calls) / rollouts), ('12 mean tokens sampled', sum(num_tokens) / rollouts),
        ('13 calls cut off', sum(num_truncated) / greatest(sum(num_calls), 1)),
        ('14 needed another attempt', sum(num_retried) / rollouts), ('15 newest version', toFloat64(nullIf(max(last) AS newest, -1))),
        ('16 versions', toFloat64(uniqExactArray(versions)))
    ]) AS one, arrayFilter(one -> one.1 = newest AND newest >= 0, groupArray((last, of_last))) AS newest_tasks
    FROM by_task GROUP BY side
)
SELECT
    concat({a:String}, ' : ', {b:String}) AS run_id, substring(one.1, 4) AS figure,
    anyIf(one.2, side = 'a') AS a, anyIf(one.2, side = 'b') AS b,
    if(startsWith(figure, 'standard error'), sqrt(a * a + b * b), b - a) AS difference
FROM metrics
GROUP BY one.1
ORDER BY one.1
