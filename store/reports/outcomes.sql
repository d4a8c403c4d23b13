-- title: Rollouts by outcome
-- about: Number of rollouts by outcome, with their duration, and the number that needed more than one attempt. mean_reward is over the rewards that they have: of the name that counts for the task, as in reward_by_version. So failed rollouts have none, also where reward_by_version counts them as 0.
-- plot: bar x=outcome y=rollouts series=run_id,mode,evaluation
SELECT
    run_id, mode, evaluation, agent, outcome, count() AS rollouts, avg(own_reward) AS mean_reward,
    avg(date_diff('microsecond', started_at, ended_at)) / 1e6 AS mean_seconds,
    quantile(0.95)(date_diff('microsecond', started_at, ended_at)) / 1e6 AS p95_seconds,
    sum(attempt > 1) AS retried, anyIf(error, error != '') AS example_error
FROM
(
    SELECT o.run_id AS run_id, o.mode AS mode, o.evaluation AS evaluation, o.agent AS agent, outcome, started_at, ended_at,
        attempt, error, {own_reward} AS own_reward
    FROM rollouts AS o
    LEFT ANY JOIN (SELECT run_id, rollout_id, model, reward_name FROM tasks) AS t
        ON o.run_id = t.run_id AND o.rollout_id = t.rollout_id
    LEFT ANY JOIN ({reward_settings}) AS f ON o.run_id = f.run_id AND t.model = f.model
)
GROUP BY run_id, mode, evaluation, agent, outcome
ORDER BY run_id, mode, evaluation, agent, outcome
