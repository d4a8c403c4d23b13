-- title: External model calls and their cost
-- about: Calls to models that no node answers: of endpoints, and past the gateway where agents record them as spans. Their tokens are what agents and endpoints say. Cost is by `model_prices` of the runners; unpriced calls have no price there, or no usable count of tokens, and are not in the cost.
-- plot: bar x=model y=cost series=run_id
SELECT
    run_id, agent, mode, model,
    sum(JSONExtractUInt(figures, 'num_calls')) AS num_calls,
    sum(JSONExtractUInt(figures, 'prompt_tokens')) AS prompt_tokens,
    sum(JSONExtractUInt(figures, 'response_tokens')) AS response_tokens,
    sum(JSONExtractUInt(figures, 'num_unpriced_calls')) AS num_unpriced_calls,
    sum(JSONExtractFloat(figures, 'cost')) AS cost
FROM
(
    SELECT run_id, agent, mode, entry.1 AS model, entry.2 AS figures
    FROM attempts ARRAY JOIN CAST(external_models, 'Array(Tuple(String, String))') AS entry
)
GROUP BY run_id, agent, mode, model
ORDER BY run_id, cost DESC, agent, mode, model
