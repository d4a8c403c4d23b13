-- view: credit_by_call
-- title: Which calls earned credit
-- about: Advantage that training gave the calls of a rollout, by role and by the place of the call in its rollout.
-- plot: bar x=call y=mean_advantage series=run,role
SELECT
    u.run AS run, c.role AS role, u.call AS call, count() AS calls, avg(advantage) AS mean_advantage,
    stddevPop(advantage) AS spread, countIf(advantage > 0) / count() AS positive_share,
    countIf(advantage = 0) / count() AS zero_share, avg(c.response_tokens) AS mean_tokens
FROM
(
    SELECT run, rollout, execution, advantage, toUInt32(place - 1) AS call FROM training_uses
    ARRAY JOIN credit AS advantage, arrayEnumerate(credit) AS place
    WHERE trained
) AS u
INNER JOIN model_calls AS c ON u.run = c.run AND u.rollout = c.rollout AND u.execution = c.execution AND u.call = c.call
GROUP BY run, role, call
ORDER BY run, role, call
