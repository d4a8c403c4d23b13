"""Questions of a rollout's page and of the list's filters, named and exact as in `lightningbus.store.ui.queries`."""

GROUP = """
SELECT r.rollout_id AS rollout_id, r.sample_index AS sample_index, r.outcome AS outcome, r.reward AS reward,
    r.min_weight_version AS min_weight_version, r.max_weight_version AS max_weight_version,
    r.response_tokens AS response_tokens, date_diff('microsecond', r.started_at, r.ended_at) / 1e6 AS seconds,
    t.advantages AS advantages
FROM rollouts AS r
LEFT JOIN
(
    SELECT rollout_id, mapFromArrays(groupArray(model), groupArray(advantage)) AS advantages
    FROM
    (
        SELECT rollout_id, model, advantage FROM raw_training_rollouts
        WHERE run_id = {run_id:String} AND startsWith(rollout_id, {task_id:String}) AND trained
        ORDER BY epoch DESC LIMIT 1 BY rollout_id, model
    )
    GROUP BY rollout_id
) AS t ON t.rollout_id = r.rollout_id
WHERE r.run_id = {run_id:String} AND startsWith(r.rollout_id, {task_id:String}) AND r.task_id = {task_id:String}
ORDER BY sample_index, rollout_id LIMIT 1000
"""
"""The rollouts of one task, with advantages by model; a rollout's id begins with its task's, so few rows are read."""

TOOL = """multiIf(startsWith(name, 'execute_tool '), substring(name, 14),
    attributes['gen_ai.tool.name'] != '', attributes['gen_ai.tool.name'], attributes['tool.name'])"""
"""The tool that a span calls, empty for other spans; as `lightningbus.schemas.semconv.span_kinds` names it."""

UNNAMED_TOOL = "NOT startsWith(name, 'execute_tool ') AND NOT startsWith(scope, 'lightningbus')"
"""Spans whose tool, if they call one, is in their attributes. These take long to read, so no others are read."""

TOOL_ATTEMPTS = f"""
SELECT execution_id FROM raw_spans WHERE run_id = {{run_id:String}} AND name = concat('execute_tool ', {{tool:String}})
UNION ALL
SELECT execution_id FROM raw_spans PREWHERE run_id = {{run_id:String}} AND {UNNAMED_TOOL}
WHERE {TOOL} = {{tool:String}}
"""
"""The attempts in which a tool was called."""

LABELS = "arrayMap((name, value) -> concat(name, ': ', value), mapKeys(labels), mapValues(labels))"
"""The labels of a task as texts."""

SOURCE = """if(position(task_id, '@') = 0, task_id,
    arrayStringConcat(arrayPopBack(splitByChar('@', task_id)), '@'))"""
"""The task as its file names it: in each pass and evaluation it has an id that begins with this and an @."""

NEIGHBOURS = f"""
WITH
(
    SELECT (ended_at, rollout_id) FROM rollouts WHERE run_id = {{run_id:String}} AND rollout_id = {{rollout_id:String}}
) AS here,
(
    SELECT ({SOURCE}, sample_index) FROM rollouts
    WHERE run_id = {{run_id:String}} AND rollout_id = {{rollout_id:String}}
) AS this_task
SELECT argMaxIf(rollout_id, at, at < here) AS previous, argMinIf(rollout_id, at, at > here) AS next,
    argMinIf(rollout_id, at, at > here AND (outcome != 'ok' OR reward <= 0)) AS next_failing,
    argMinIf(rollout_id, at, at > here AND turn > 1 AND reward != before) AS next_changed,
    argMinIf(rollout_id, (version, at), task = this_task) AS first_version,
    argMaxIf(rollout_id, (version, at), task = this_task) AS last_version
FROM
(
    SELECT rollout_id, outcome, reward, (ended_at, rollout_id) AS at, ifNull(max_weight_version, 0) AS version,
        ({SOURCE}, sample_index) AS task, row_number() OVER turns AS turn,
        lagInFrame(reward) OVER turns AS before
    FROM rollouts
    WHERE run_id = {{run_id:String}} AND mode = {{mode:String}} AND evaluation = {{evaluation:String}}
    WINDOW turns AS (PARTITION BY {SOURCE}, sample_index ORDER BY ended_at, rollout_id
        ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
)
"""
"""Rollouts around one, in training or in the same evaluation; empty: none.

Those that ended just before and after it; the next that failed or earned nothing; the next whose reward differs from
that of the same task and sample before; and this task and sample at its first and its last version.
"""

CHOICES = f"""
SELECT
    (SELECT groupUniqArrayArray(100)({LABELS}) FROM raw_tasks WHERE run_id = {{run_id:String}}) AS labels,
    (SELECT groupUniqArrayArray(100)(mapKeys(rewards)) FROM raw_attempts WHERE run_id = {{run_id:String}}) AS parts,
    (SELECT groupUniqArray(100)(evaluation) FROM raw_attempts
        WHERE run_id = {{run_id:String}} AND evaluation != '') AS evaluations,
    (SELECT groupUniqArray(100)(role) FROM raw_model_calls WHERE run_id = {{run_id:String}} AND role != '') AS roles,
    (
        SELECT groupUniqArray(100)(tool) FROM
        (
            SELECT DISTINCT substring(name, 14) AS tool FROM raw_spans
            WHERE run_id = {{run_id:String}} AND startsWith(name, 'execute_tool ')
            UNION DISTINCT
            SELECT DISTINCT {TOOL} AS tool FROM raw_spans PREWHERE run_id = {{run_id:String}} AND {UNNAMED_TOOL}
            WHERE tool != ''
        )
    ) AS tools
"""
"""Values by which the list can be filtered."""
