-- view: slowest_rollouts
-- title: The slowest rollouts
-- about: Of each run the twenty that took longest from start to end.
-- plot: bar x=rollout y=model_seconds,tool_seconds,other_seconds stacked
SELECT
    run, rollout, mode, outcome, reward, date_diff('microsecond', started, ended) / 1e6 AS seconds,
    model_seconds, tool_seconds, seconds - model_seconds - tool_seconds AS other_seconds,
    calls, prompt_tokens, response_tokens, attempt, runner
FROM rollouts
ORDER BY run, seconds DESC
LIMIT 20 BY run
