-- title: Which calls earned credit
-- about: Advantage that the training of a model gave its calls of a rollout, by role and by the index of the call in its rollout.
-- plot: bar x=call y=mean_advantage series=run_id,model,role
SELECT
    u.run_id AS run_id, u.model AS model, c.role AS role, u.call AS call, count() AS num_calls, avg(advantage) AS mean_advantage,
    stddevPop(advantage) AS spread, countIf(advantage > 0) / count() AS positive_share,
    countIf(advantage = 0) / count() AS zero_share, avg(c.response_tokens) AS mean_tokens
FROM
(
    SELECT run_id, model, rollout_id, execution_id, advantage, toUInt32(position - 1) AS call FROM training_rollouts
    ARRAY JOIN call_advantages AS advantage, arrayEnumerate(call_advantages) AS position
    WHERE trained
) AS u
INNER JOIN model_calls AS c ON u.run_id = c.run_id AND u.rollout_id = c.rollout_id AND u.execution_id = c.execution_id AND u.call = c.call AND u.model = c.model
GROUP BY run_id, model, role, call
ORDER BY run_id, model, role, call
