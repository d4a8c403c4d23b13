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

NEIGHBOURS = """
WITH
(
    SELECT (ended_at, rollout_id) FROM rollouts WHERE run_id = {run_id:String} AND rollout_id = {rollout_id:String}
) AS here
SELECT argMaxIf(rollout_id, (ended_at, rollout_id), (ended_at, rollout_id) < here) AS previous,
    argMinIf(rollout_id, (ended_at, rollout_id), (ended_at, rollout_id) > here) AS next
FROM rollouts WHERE run_id = {run_id:String} AND mode = {mode:String} AND evaluation = {evaluation:String}
"""
"""Rollouts that ended just before and after one, in training or in the same evaluation; empty: none."""

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

CHOICES = f"""
SELECT
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
