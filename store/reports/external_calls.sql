-- title: External model calls and their cost
-- about: Calls to models that no node answers: of endpoints, and past the gateway where agents record them as spans. Cost is by `model_prices` of the runners; unpriced calls have no price there, or say no tokens, and are not in the cost.
-- plot: bar x=model y=cost series=run_id
SELECT
    run_id, r.agent AS agent, r.mode AS mode,
    coalesce(nullIf(attributes['gen_ai.request.model'], ''), nullIf(attributes['gen_ai.response.model'], ''), nullIf(attributes['llm.model_name'], ''), '') AS model,
    count() AS num_calls,
    sum(toUInt64OrZero(coalesce(nullIf(attributes['gen_ai.usage.input_tokens'], ''), nullIf(attributes['gen_ai.usage.prompt_tokens'], ''), nullIf(attributes['llm.token_count.prompt'], ''), ''))) AS prompt_tokens,
    sum(toUInt64OrZero(coalesce(nullIf(attributes['gen_ai.usage.output_tokens'], ''), nullIf(attributes['gen_ai.usage.completion_tokens'], ''), nullIf(attributes['llm.token_count.completion'], ''), ''))) AS response_tokens,
    countIf(mapContains(attributes, 'lightningbus.external.unpriced')) AS unpriced_calls,
    sum(toFloat64OrZero(attributes['lightningbus.external.cost'])) AS cost
FROM spans AS s
INNER JOIN attempts AS r USING (run_id, rollout_id, attempt, execution_id)
WHERE mapContains(attributes, 'lightningbus.external.cost') OR mapContains(attributes, 'lightningbus.external.unpriced')
GROUP BY run_id, agent, mode, model
ORDER BY run_id, cost DESC, agent, mode, model
