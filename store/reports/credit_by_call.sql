-- title: Credit by call
-- about: Mean advantage of the calls that a model was trained on, by role and by the index of the call in its rollout. mean_tokens: mean number of trained tokens of a call.
-- plot: bar x=call y=mean_advantage series=run_id,model,role
SELECT
    run_id, model, call_roles[position] AS role, toUInt32(position - 1) AS call, count() AS num_calls,
    avg(call_advantage) AS mean_advantage, stddevPop(call_advantage) AS spread,
    countIf(call_advantage > 0) / count() AS positive_share, countIf(call_advantage = 0) / count() AS zero_share,
    avg(call_tokens[position]) AS mean_tokens
FROM training_rollouts
ARRAY JOIN call_advantages AS call_advantage, arrayEnumerate(call_advantages) AS position
WHERE trained AND call_tokens[position] > 0
GROUP BY run_id, model, role, call
ORDER BY run_id, model, role, call
