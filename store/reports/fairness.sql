-- title: Share of slow and hard tasks in training
-- about: Rollouts dispatched for training and those trained on, for each model, by tenth of their duration, by label, and by task (the twenty with the lowest share). dispatched_share and trained_share are shares of the run's rollouts; a task that was dispatched again after a failed group counts once. ks_p_value: Kolmogorov-Smirnov test of the durations of dispatched against trained rollouts, near 0 where they differ.
-- plot: bar x=value y=dispatched_share,trained_share series=run_id,model,kind
-- Rollouts are joined by a 64-bit hash, three times as fast as strings: among ten million, two are mixed up once in 300,000 reports.
SELECT
    run_id, model, item.1 AS kind, item.2 AS value, avgIf(row.seconds, row.has_ended) AS mean_seconds,
    countIf(NOT row.is_replacement) AS dispatched, countIf(row.is_trained) AS trained, trained / dispatched AS share,
    dispatched / sum(dispatched) OVER (PARTITION BY run_id, model, kind) AS dispatched_share,
    trained / greatest(1, sum(trained) OVER (PARTITION BY run_id, model, kind)) AS trained_share,
    any(ks_p_value) AS ks_p_value
FROM
(
    SELECT
        run_id, model, ks_p_value, row,
        arrayJoin(arrayConcat(
            [('task', row.name), ('duration', if(row.has_ended, ['01', '02', '03', '04', '05', '06', '07', '08', '09', '10'][1 + arrayCount(limit -> row.seconds > limit, tenths)], 'not ended'))],
            arrayMap((label, text) -> (concat('label ', label), text), mapKeys(row.labels), mapValues(row.labels)))) AS item
    FROM
    (
        SELECT
            run_id, model, groupArray(
                (name, labels, is_replacement, has_ended, seconds, is_trained)::Tuple(name String, labels Map(String, String),
                    is_replacement Bool, has_ended Bool, seconds Float64, is_trained Bool)) AS rows,
            quantilesExactIf(0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)(seconds, has_ended AND NOT is_replacement) AS tenths,
            if(countIf(is_trained) > 0, kolmogorovSmirnovTestArrayIf('two-sided')(
                arrayMap(sample -> seconds, samples), samples, has_ended).2, NULL) AS ks_p_value
        FROM
        (
            SELECT
                t.run_id AS run_id, m.model AS model, t.labels AS labels, replaceRegexpOne(t.task_id, '@[^@]*$', '') AS name,
                match(t.task_id, '-[pg][0-9]+r[0-9]+$') AS is_replacement, r.rollout_id != '' AS has_ended,
                date_diff('microsecond', r.started_at, r.ended_at) / 1e6 AS seconds,
                cityHash64(t.run_id, t.rollout_id, m.model)
                    IN (SELECT cityHash64(run_id, rollout_id, model) FROM training_rollouts WHERE trained) AS is_trained,
                arrayConcat(if(is_replacement, [], [0]), if(is_trained, [1], [])) AS samples
            FROM tasks AS t
            LEFT JOIN (SELECT DISTINCT run_id, model FROM training_rollouts) AS m ON t.run_id = m.run_id
            LEFT ANY JOIN (SELECT cityHash64(run_id, rollout_id) AS id, rollout_id, started_at, ended_at FROM rollouts) AS r
                ON cityHash64(t.run_id, t.rollout_id) = r.id
            WHERE t.mode = 'train'
        )
        GROUP BY run_id, model
    )
    ARRAY JOIN rows AS row
)
GROUP BY run_id, model, kind, value
HAVING dispatched > 0
ORDER BY run_id, model, kind, if(kind = 'task', share, 0), value
LIMIT 20 BY run_id, model, kind
