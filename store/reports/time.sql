-- view: time_in_rollout
-- title: Where the time of a rollout goes
-- about: queue: from the bus having the task to its attempt; model: a model call was open; tool: a tool was at work; agent: the rest of the attempt; publish: from its end to the bus having all of it.
-- plot: bar x=part y=mean_seconds,p95_seconds series=run,mode
SELECT
    run, mode, one.1 AS part, count() AS rollouts, avg(one.2) AS mean_seconds, quantile(0.5)(one.2) AS p50_seconds,
    quantile(0.95)(one.2) AS p95_seconds, max(one.2) AS max_seconds
FROM
(
    SELECT run, mode, date_diff('microsecond', started, ended) / 1e6 AS whole, arrayJoin([
        ('1 queue', greatest(0., date_diff('microsecond', published, started) / 1e6)),
        ('2 model', model_seconds),
        ('3 tool', tool_seconds),
        ('4 agent', greatest(0., whole - model_seconds - tool_seconds)),
        ('5 publish', greatest(0., date_diff('microsecond', ended, stored) / 1e6))
    ]) AS one
    FROM rollouts WHERE published > toDateTime64(0, 9)
)
GROUP BY run, mode, part
ORDER BY run, mode, part
