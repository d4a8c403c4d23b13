-- title: A rollout token by token: version, probability, advantage
-- about: Every sampled token with its model and weight version. If that model was trained on its rollout, also the advantage of its call and the staleness in versions.
-- parameter: rollout_id String =
SELECT
    t.run_id AS run_id, t.rollout_id AS rollout_id, t.execution_id AS execution_id, t.call AS call, c.model AS model, t.position AS position, t.token AS token,
    t.token_text AS token_text, t.logprob AS logprob, t.version AS version,
    if(u.trained, u.call_advantages[t.call + 1], NULL) AS advantage,
    if(u.trained, toInt64(u.version) - 1 - t.version, NULL) AS staleness
FROM (SELECT * FROM tokens WHERE {rollout_id:String} = '' OR rollout_id = {rollout_id:String}) AS t
LEFT JOIN
(
    SELECT run_id, rollout_id, execution_id, call, model FROM model_calls
    WHERE {rollout_id:String} = '' OR rollout_id = {rollout_id:String}
) AS c ON t.run_id = c.run_id AND t.rollout_id = c.rollout_id AND t.execution_id = c.execution_id AND t.call = c.call
LEFT JOIN
(
    SELECT * FROM training_rollouts WHERE trained AND ({rollout_id:String} = '' OR rollout_id = {rollout_id:String})
) AS u ON t.run_id = u.run_id AND t.rollout_id = u.rollout_id AND t.execution_id = u.execution_id AND c.model = u.model
ORDER BY run_id, rollout_id, execution_id, call, position
