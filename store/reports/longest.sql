-- view: longest_rollouts
-- title: The longest rollouts
-- about: Of each run the twenty with the most tokens sampled.
-- plot: bar x=rollout y=response_tokens
SELECT
    run, rollout, mode, outcome, reward, calls, prompt_tokens, response_tokens, truncated,
    date_diff('microsecond', started, ended) / 1e6 AS seconds
FROM rollouts
ORDER BY run, response_tokens DESC, rollout
LIMIT 20 BY run
