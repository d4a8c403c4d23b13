-- title: Comparison of two runs or two versions
-- about: a and b are runs, and `lightningbus report compare A B` reads each in its own store; version_a and version_b, if given, restrict them to rollouts of that version. The version is one of model, which is by default the model that agents call by name.
-- parameter: a String
-- parameter: b String
-- parameter: version_a Int64 = -1
-- parameter: version_b Int64 = -1
-- parameter: model String =
-- parameter: mode String = train
-- parameter: evaluation String =
WITH metrics AS
(
    SELECT side, arrayJoin([
        ('01 rollouts', toFloat64(count())), ('02 ended well', countIf(outcome = 'ok') / count()),
        ('03 mean reward', avgIf(reward, outcome = 'ok')), ('04 reward spread', stddevPopIf(reward, outcome = 'ok')),
        ('05 mean reward of the newest version', avgIf(reward, outcome = 'ok' AND version = newest)),
        ('06 mean seconds', avg(date_diff('microsecond', started_at, ended_at)) / 1e6),
        ('07 mean model seconds', avg(model_seconds)), ('08 mean calls', avg(num_calls)),
        ('09 mean tokens sampled', avg(response_tokens)), ('10 calls cut off', sum(num_truncated) / greatest(sum(num_calls), 1)),
        ('11 needed another attempt', countIf(attempt > 1) / count()), ('12 newest version', toFloat64(any(newest)))
    ]) AS one
    FROM
    (
        SELECT *, max(version) OVER (PARTITION BY side) AS newest
        FROM (SELECT *, arrayJoin(arrayFilter(one -> one != '', [
            if(run_id = {a:String} AND {version_a:Int64} IN (-1, version), 'a', ''),
            if(run_id = {b:String} AND {version_b:Int64} IN (-1, version), 'b', '')])) AS side
            FROM (
                SELECT *, if({model:String} = '', max_weight_version, toNullable(newest_versions[{model:String}])) AS version
                FROM rollouts WHERE {model:String} = '' OR mapContains(newest_versions, {model:String})
            )
            WHERE mode = {mode:String} AND evaluation = {evaluation:String})
    )
    GROUP BY side
)
SELECT
    concat({a:String}, ' : ', {b:String}) AS run_id, substring(one.1, 4) AS figure,
    anyIf(one.2, side = 'a') AS a, anyIf(one.2, side = 'b') AS b, b - a AS difference
FROM metrics
GROUP BY one.1
ORDER BY one.1
