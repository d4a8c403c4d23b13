-- title: Time of a rollout by part
-- about: queue: until an attempt of the published task begins. model: a model call is open. tool: a tool is running. agent: the rest of the attempt. publish: from its end until the bus has all of it.
-- plot: bar x=part y=mean_seconds,p95_seconds series=run_id,mode,evaluation
SELECT
    run_id, mode, evaluation, one.1 AS part, count() AS rollouts, avg(one.2) AS mean_seconds, quantile(0.5)(one.2) AS p50_seconds,
    quantile(0.95)(one.2) AS p95_seconds, max(one.2) AS max_seconds
FROM
(
    SELECT run_id, mode, evaluation, date_diff('microsecond', started_at, ended_at) / 1e6 AS whole, arrayJoin([
        ('1 queue', greatest(0., date_diff('microsecond', enqueued_at, started_at) / 1e6)),
        ('2 model', model_seconds),
        ('3 tool', tool_seconds),
        ('4 agent', greatest(0., whole - model_seconds - tool_seconds)),
        ('5 publish', greatest(0., date_diff('microsecond', ended_at, stored_at) / 1e6))
    ]) AS one
    FROM rollouts WHERE enqueued_at > toDateTime64(0, 9)
)
GROUP BY run_id, mode, evaluation, part
ORDER BY run_id, mode, evaluation, part
