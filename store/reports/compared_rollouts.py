"""The rollouts that a comparison of two runs or versions is about, and how each counts. Pure.

The newest version of a rollout is read from its tokens; an evaluation has the one that its task is pinned to.
"""

COMPARED_ROLLOUTS = """
chosen AS
(
    SELECT *,
        if({model:String} = '', max_weight_version, toNullable(newest_versions[{model:String}])) AS sampled_version
    FROM rollouts
    WHERE run_id IN ({a:String}, {b:String}) AND mode = {mode:String} AND evaluation = {evaluation:String}
        AND ({model:String} = '' OR mapContains(newest_versions, {model:String}))
        AND (
            {mode:String} = 'eval' OR -1 IN ({version_a:Int64}, {version_b:Int64})
            OR sampled_version IN ({version_a:Int64}, {version_b:Int64})
        )
),
always_named AS
(
    SELECT run_id FROM rollouts
    WHERE run_id IN ({a:String}, {b:String}) AND mode = {mode:String} AND evaluation = {evaluation:String}
        AND outcome = 'ok' AND notEmpty(rewards)
        AND ({model:String} = '' OR mapContains(newest_versions, {model:String}))
    GROUP BY run_id HAVING min(mapContains(rewards, {reward:String})) = 1
),
sided AS
(
    SELECT *, arrayJoin(arrayFilter(one -> one != '', [
        if(run_id = {a:String} AND {version_a:Int64} IN (-1, version), 'a', ''),
        if(run_id = {b:String} AND {version_b:Int64} IN (-1, version), 'b', '')])) AS side
    FROM
    (
        SELECT o.run_id AS run_id, replaceRegexpOne(task_id, '@[^@]*$', '') AS question,
            outcome = 'ok' AS is_ok, attempt > 1 AS is_retried,
            date_diff('microsecond', started_at, ended_at) / 1e6 AS seconds, model_seconds, num_calls, response_tokens,
            num_truncated, input_hash,
            if(mapContains(t.weight_versions, answering), toNullable(t.weight_versions[answering]), sampled_version)
                AS version,
            multiIf(
                {reward:String} != '' AND outcome = 'ok',
                    if(mapContains(rewards, {reward:String}), toNullable(rewards[{reward:String}]), NULL),
                {reward:String} != '' AND run_id NOT IN (SELECT run_id FROM always_named), NULL,
                NOT mapContains(newest_versions, answering) AND NOT mapContains(t.weight_versions, answering), NULL,
                {counted_reward}) AS counted
        FROM chosen AS o
        LEFT ANY JOIN (
            SELECT run_id, rollout_id, if({model:String} = '', model, {model:String}) AS answering, reward_name,
                cityHash64(input) AS input_hash, if(mode = 'eval', weight_versions, map()) AS weight_versions
            FROM tasks
            WHERE run_id IN ({a:String}, {b:String}) AND mode = {mode:String}
                AND (-1 IN ({version_a:Int64}, {version_b:Int64}) OR rollout_id IN (SELECT rollout_id FROM chosen))
        ) AS t ON o.run_id = t.run_id AND o.rollout_id = t.rollout_id
        LEFT ANY JOIN ({reward_settings}) AS f ON o.run_id = f.run_id AND t.answering = f.model
    )
)
"""
"""Common table expressions: ``sided`` has a row for each rollout of side a and of side b, with what it counts."""
