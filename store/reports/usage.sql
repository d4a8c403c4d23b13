-- title: Tokens and cost by role and model
-- about: Tokens of model calls. A prompt counts whole at each call; new_prompt_tokens counts only the part that a call added to earlier ones. Prices are per million tokens.
-- parameter: input_price Float64 = 0
-- parameter: output_price Float64 = 0
-- plot: bar x=role y=prompt_tokens,response_tokens series=run_id,model
SELECT
    run_id, model, role, count() AS num_calls, uniqExact(rollout_id) AS rollouts, sum(c.prompt_tokens) AS prompt_tokens,
    sum(prompt_suffix_tokens) AS new_prompt_tokens, sum(c.response_tokens) AS response_tokens,
    sum(c.response_tokens) / count() AS response_per_call, countIf(finish_reason = 'length') / count() AS truncated_share,
    sum(date_diff('microsecond', started_at, ended_at)) / 1e6 AS model_seconds,
    (sum(c.prompt_tokens) * {input_price:Float64} + sum(c.response_tokens) * {output_price:Float64}) / 1e6 AS cost
FROM model_calls AS c
GROUP BY run_id, model, role
ORDER BY run_id, model, role
