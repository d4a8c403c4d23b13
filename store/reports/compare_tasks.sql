-- title: Comparison of two runs or two versions, task by task
-- about: The mean reward of each task on both sides, and the difference b - a, the greatest first. Parameters, rewards and versions are those of compare. A task of both sides has the same name and the same input; input_hash tells apart tasks of one name. Rollouts that count nowhere are left out.
-- parameter: a String
-- parameter: b String
-- parameter: version_a Int64 = -1
-- parameter: version_b Int64 = -1
-- parameter: model String =
-- parameter: mode String = train
-- parameter: evaluation String =
-- parameter: reward String =
WITH {compared_rollouts}
SELECT
    concat({a:String}, ' : ', {b:String}) AS run_id, question AS task, lower(hex(input_hash)) AS input_hash,
    countIf(counted, side = 'a') AS rollouts_a, avgIf(counted, side = 'a') AS reward_a,
    countIf(counted, side = 'b') AS rollouts_b, avgIf(counted, side = 'b') AS reward_b, reward_b - reward_a AS difference
FROM sided
GROUP BY question, input_hash
HAVING rollouts_a + rollouts_b > 0
ORDER BY difference DESC NULLS LAST, task, input_hash
