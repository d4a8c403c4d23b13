-- title: Grades, failures and cost
-- about: Grades by grading. `live` is the one that rollouts ended with, others are later ones. Failed: the rollout has no reward. Cost is that of judges' calls, by the prices in their settings.
-- plot: bar x=grading y=graded,failed series=run_id
SELECT
    run_id, grading, countIf(reward IS NOT NULL) AS graded, countIf(reward IS NULL) AS failed,
    avg(g.reward) AS mean_reward, sum(num_judge_calls) AS judge_calls,
    sum(num_cached) / nullIf(sum(num_judge_calls), 0) AS cached_share, sum(g.prompt_tokens) AS prompt_tokens,
    sum(g.response_tokens) AS response_tokens, sum(g.cost) AS cost,
    avg(date_diff('microsecond', started_at, graded_at)) / 1e6 AS seconds_per_rollout
FROM grades AS g
GROUP BY run_id, grading
ORDER BY run_id, grading
