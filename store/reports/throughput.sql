-- title: Rollouts, tokens and calls per second, by minute
-- about: An attempt counts in the minute in which it ended.
-- plot: line x=minute y=rollouts_per_s,response_tokens_per_s series=run_id
SELECT
    run_id, toStartOfMinute(ended_at) AS minute, count() / 60 AS rollouts_per_s, sum(response_tokens) / 60 AS response_tokens_per_s,
    sum(prompt_tokens) / 60 AS prompt_tokens_per_s, sum(num_calls) / 60 AS calls_per_s, avg(reward) AS mean_reward,
    countIf(outcome != 'ok') AS failed
FROM attempts
GROUP BY run_id, minute
ORDER BY run_id, minute
