-- title: The longest rollouts
-- about: The twenty rollouts of each run with the most sampled tokens.
-- plot: bar x=rollout_id y=response_tokens
SELECT
    run_id, rollout_id, mode, evaluation, outcome, reward, num_calls, prompt_tokens, response_tokens, num_truncated,
    date_diff('microsecond', started_at, ended_at) / 1e6 AS seconds
FROM rollouts
ORDER BY run_id, response_tokens DESC, rollout_id
LIMIT 20 BY run_id
