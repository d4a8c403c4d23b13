-- view: token_credit
-- title: A rollout token by token: version, probability, advantage
-- about: Every sampled token with the weight version that made it and, where its rollout was trained on, the advantage of its call and how many versions it was behind.
-- parameter: rollout String =
SELECT
    t.run AS run, t.rollout AS rollout, t.execution AS execution, t.call AS call, t.position AS position, t.token AS token,
    t.piece AS piece, t.logprob AS logprob, t.version AS version,
    if(u.trained, u.credit[t.call + 1], NULL) AS advantage,
    if(u.trained, toInt64(u.version) - 1 - t.version, NULL) AS staleness
FROM token_versions AS t
LEFT JOIN (SELECT * FROM training_uses WHERE trained) AS u
    ON t.run = u.run AND t.rollout = u.rollout AND t.execution = u.execution
WHERE {rollout:String} IN ('', t.rollout)
ORDER BY run, rollout, execution, call, position
