-- title: The slowest rollouts
-- about: The twenty rollouts of each run with the longest time from start to end.
-- plot: bar x=rollout_id y=model_seconds,tool_seconds,other_seconds stacked
-- The twenty are found first, by two columns; to sort whole rows takes several times as long.
SELECT
    run_id, rollout_id, mode, evaluation, outcome, reward, date_diff('microsecond', started_at, ended_at) / 1e6 AS seconds,
    model_seconds, tool_seconds, seconds - model_seconds - tool_seconds AS other_seconds,
    num_calls, prompt_tokens, response_tokens, attempt, runner
FROM rollouts
WHERE (run_id, rollout_id) IN
(
    SELECT run_id, arrayJoin(groupArraySorted(20)((-date_diff('microsecond', started_at, ended_at), rollout_id))).2
    FROM rollouts GROUP BY run_id
)
ORDER BY run_id, seconds DESC, rollout_id
