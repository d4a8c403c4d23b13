-- title: Whether slow and hard tasks are trained at their share
-- about: By model: rollouts dispatched for training against those it was trained on, by tenth of their duration, by label, and by task (the twenty with the lowest share). dispatched_share and trained_share are of the run's rollouts; a task that was dispatched again because its group came to nothing counts once. ks_p_value: Kolmogorov-Smirnov test of the durations dispatched against those trained, near 0 where they differ.
-- plot: bar x=value y=dispatched_share,trained_share series=run_id,model,kind
WITH models AS (SELECT DISTINCT run_id, model FROM training_rollouts),
dispatched AS
(
    SELECT
        t.run_id AS run_id, m.model AS model, t.labels AS labels, splitByChar('@', t.task_id)[1] AS name,
        match(t.task_id, '-p[0-9]+r[0-9]+$') AS is_replacement, r.rollout_id != '' AS has_ended,
        date_diff('microsecond', r.started_at, r.ended_at) / 1e6 AS seconds,
        (t.run_id, t.rollout_id, m.model) IN (SELECT run_id, rollout_id, model FROM training_rollouts WHERE trained) AS is_trained
    FROM tasks AS t
    LEFT JOIN models AS m ON t.run_id = m.run_id
    LEFT JOIN rollouts AS r ON t.run_id = r.run_id AND t.rollout_id = r.rollout_id
    WHERE t.mode = 'train'
),
durations AS
(
    SELECT run_id, model, quantilesExactIf(0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)(seconds, has_ended AND NOT is_replacement) AS tenths
    FROM dispatched GROUP BY run_id, model
),
tests AS
(
    SELECT run_id, model, kolmogorovSmirnovTest('two-sided')(seconds, sample).2 AS ks_p_value
    FROM
    (
        SELECT run_id, model, seconds, arrayJoin(arrayConcat(if(is_replacement, [], [0]), if(is_trained, [1], []))) AS sample
        FROM dispatched
        WHERE has_ended AND (run_id, model) IN (SELECT run_id, model FROM dispatched WHERE is_trained)
    )
    GROUP BY run_id, model
)
SELECT
    run_id, model, kind, value, avgIf(seconds, has_ended) AS mean_seconds,
    countIf(NOT is_replacement) AS dispatched, countIf(is_trained) AS trained, trained / dispatched AS share,
    dispatched / sum(dispatched) OVER (PARTITION BY run_id, model, kind) AS dispatched_share,
    trained / greatest(1, sum(trained) OVER (PARTITION BY run_id, model, kind)) AS trained_share,
    any(ks_p_value) AS ks_p_value
FROM
(
    SELECT
        d.run_id AS run_id, d.model AS model, d.seconds AS seconds, has_ended, is_replacement, is_trained, ks_p_value,
        arrayJoin(arrayConcat(
            [('task', name), ('duration', if(has_ended, leftPad(toString(1 + arrayCount(limit -> d.seconds > limit, tenths)), 2, '0'), 'not ended'))],
            arrayMap((label, text) -> (concat('label ', label), text), mapKeys(labels), mapValues(labels)))) AS item,
        item.1 AS kind, item.2 AS value
    FROM dispatched AS d
    INNER JOIN durations AS q ON d.run_id = q.run_id AND d.model = q.model
    LEFT JOIN tests AS k ON d.run_id = k.run_id AND d.model = k.model
)
GROUP BY run_id, model, kind, value
HAVING dispatched > 0
ORDER BY run_id, model, kind, if(kind = 'task', share, 0), value
LIMIT 20 BY run_id, model, kind
