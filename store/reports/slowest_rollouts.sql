-- title: The slowest rollouts
-- about: Of each run the twenty that took longest from start to end.
-- plot: bar x=rollout_id y=model_seconds,tool_seconds,other_seconds stacked
SELECT
    run_id, rollout_id, mode, evaluation, outcome, reward, date_diff('microsecond', started_at, ended_at) / 1e6 AS seconds,
    model_seconds, tool_seconds, seconds - model_seconds - tool_seconds AS other_seconds,
    num_calls, prompt_tokens, response_tokens, attempt, runner
FROM rollouts
ORDER BY run_id, seconds DESC
LIMIT 20 BY run_id
