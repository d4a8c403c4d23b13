"""The questions the pages ask, over the exact views. A name that ends in ``_ms`` is milliseconds since 1970.

Every question about a run begins at its rows by the tables' key; where LIMIT 1 BY keeps one row of each identity, the
tables are as exact as the views and faster. A curve has at most `MAX_POINTS` points however long the run is: versions
next to each other are taken together, ``per_point`` of them.
"""

from lightningbus.store.reports import REPORTS
from lightningbus.store.reports.counted_rewards import COUNTED_REWARDS
from lightningbus.store.reports.run_alerts import RUN_ALERTS

MAX_POINTS = 300
MAX_SPANS = 2000

CHANGE_TOKEN = """
SELECT count() AS attempts, max(stream_sequence) AS last,
    (SELECT count() FROM raw_training_steps WHERE run_id = {run_id:String}) AS steps,
    (SELECT count() FROM raw_weight_versions WHERE run_id = {run_id:String}) AS versions
FROM raw_attempts WHERE run_id = {run_id:String}
"""
"""Changes with anything about a run; it costs less than any of the figures."""

AUDIT = """
SELECT a.tokens AS tokens, a.differing AS differing, q.quarantined AS quarantined, q.trained_before AS trained_before
FROM
(
    SELECT sum(num_tokens) AS tokens, sum(num_differing) AS differing FROM rollout_audits
    WHERE run_id = {run_id:String} AND {model:String} IN ('', model)
) AS a
CROSS JOIN (
    SELECT count() AS quarantined, countIf(trained_before) AS trained_before FROM quarantined_rollouts
    WHERE run_id = {run_id:String} AND {model:String} IN ('', model)
) AS q
"""
"""Tokens that the auditor recomputed, how many of them differ, and the rollouts quarantined for it."""

MODELS = """
WITH (SELECT any(model) FROM (SELECT model FROM raw_tasks WHERE run_id = {run_id:String} LIMIT 1)) AS main
SELECT model, model = main AS is_main
FROM
(
    SELECT model, is_trained, max(is_trained) OVER () AS has_trained
    FROM
    (
        SELECT DISTINCT model, true AS is_trained FROM raw_weight_versions WHERE run_id = {run_id:String}
        UNION DISTINCT SELECT DISTINCT model, true FROM raw_training_steps WHERE run_id = {run_id:String}
        UNION ALL SELECT DISTINCT model, false FROM raw_tasks WHERE run_id = {run_id:String}
    )
)
WHERE is_trained = has_trained ORDER BY is_main DESC, model
"""
"""The models that a run trains, the one that agents call by name first; where it trains none, those of its tasks."""

OF_MODEL = "{model:String} IN ('', model)"
"""Condition on the model; empty: all models."""

MODEL_VERSION = """if({model:String} = '', max_weight_version,
    if(mapContains(newest_versions, {model:String}), newest_versions[{model:String}], NULL))"""
"""The newest version of the model in a rollout; without a model, of the one that agents call by name."""

SUMMARY = f"""
SELECT mode, evaluation, count() AS rollouts, countIf(outcome = 'ok') AS ended_well, countIf(attempt > 1) AS retried,
    sumMap(map(outcome, toUInt64(1))) AS outcomes, max({MODEL_VERSION}) AS version,
    toUnixTimestamp64Milli(min(started_at)) AS first_ms, toUnixTimestamp64Milli(max(ended_at)) AS last_ms
FROM rollouts WHERE run_id = {{run_id:String}} GROUP BY mode, evaluation ORDER BY mode DESC, evaluation
"""

COUNTED_OF_RUN = f"""
WITH rollouts AS (SELECT * FROM raw_rollouts FINAL WHERE run_id = {{run_id:String}}),
tasks AS (SELECT * FROM raw_tasks WHERE run_id = {{run_id:String}}),
training_steps AS (SELECT * FROM raw_training_steps WHERE run_id = {{run_id:String}}),
counted_rewards AS ({COUNTED_REWARDS})
"""
"""Common table expressions that the reports of rewards read, of one run."""

REWARDS = f"""{COUNTED_OF_RUN},
by_version AS ({REPORTS["reward_by_version"].body})
SELECT model, mode, evaluation, intDiv(one, width) * width AS version, any(width) AS per_point, sum(num) AS rollouts,
    sum(num * mean) / rollouts AS mean_reward,
    sqrt(greatest(0., sum(num * (spread * spread + mean * mean)) / rollouts - mean_reward * mean_reward))
        AS reward_spread,
    sqrt(sum(num * num * error * error)) / sumIf(num, error IS NOT NULL) AS standard_error,
    min(low) AS worst, max(high) AS best, sum(num_tasks) AS tasks, min(is_binary) AS is_success_rate
FROM
(
    SELECT model, mode, evaluation, version AS one, rollouts AS num, mean_reward AS mean, reward_spread AS spread,
        standard_error AS error, worst AS low, best AS high, tasks AS num_tasks,
        is_success_rate AS is_binary, intDiv(max(one) OVER (), {MAX_POINTS}) + 1 AS width
    FROM by_version WHERE {OF_MODEL}
)
GROUP BY model, mode, evaluation, version ORDER BY model, mode DESC, evaluation, version
"""
"""The report `reward_by_version` of one run, in few points."""

NAMED_REWARDS = f"""{COUNTED_OF_RUN},
by_name AS ({REPORTS["reward_by_name"].body})
SELECT model, mode, evaluation, name, intDiv(one, width) * width AS version, any(width) AS per_point,
    sum(num) AS rollouts,
    sum(num * mean) / rollouts AS mean_reward,
    sqrt(sum(num * num * error * error)) / sumIf(num, error IS NOT NULL) AS standard_error,
    min(low) AS worst, max(high) AS best, sum(num_tasks) AS tasks, min(is_binary) AS is_success_rate
FROM
(
    SELECT model, mode, evaluation, name, version AS one, rollouts AS num, mean_reward AS mean,
        standard_error AS error, worst AS low, best AS high, tasks AS num_tasks,
        is_success_rate AS is_binary, intDiv(max(one) OVER (), {MAX_POINTS}) + 1 AS width
    FROM by_name WHERE {OF_MODEL}
)
GROUP BY model, mode, evaluation, name, version ORDER BY model, name, mode DESC, evaluation, version
"""
"""The report `reward_by_name` of one run, in few points."""

HAS_NAMED_REWARDS = """
SELECT 1 FROM raw_rollouts WHERE run_id = {run_id:String} AND notEmpty(rewards) LIMIT 1
"""
"""A row where any rollout of the run has a named reward."""

HAS_AUDITS = """
SELECT 1 FROM raw_rollout_audits WHERE run_id = {run_id:String} LIMIT 1
UNION ALL SELECT 1 FROM raw_audit_verdicts LIMIT 1
"""
"""A row where the auditor recomputed any rollout of the run, or convicted any engine."""

TIME = """
SELECT mode, evaluation, rollouts, one.1 AS part, one.2 AS mean_seconds, one.3 AS p95_seconds
FROM
(
    SELECT mode, evaluation, count() AS rollouts,
        [('queue', avg(queue), quantile(0.95)(queue)), ('model', avg(model), quantile(0.95)(model)),
         ('tool', avg(tool), quantile(0.95)(tool)), ('agent', avg(agent), quantile(0.95)(agent)),
         ('publish', avg(publish), quantile(0.95)(publish))] AS parts
    FROM
    (
        SELECT mode, evaluation, greatest(0., date_diff('microsecond', enqueued_at, started_at) / 1e6) AS queue,
            model_seconds AS model, tool_seconds AS tool,
            greatest(0., date_diff('microsecond', started_at, ended_at) / 1e6 - model_seconds - tool_seconds) AS agent,
            greatest(0., date_diff('microsecond', ended_at, stored_at) / 1e6) AS publish
        FROM rollouts WHERE run_id = {run_id:String} AND enqueued_at > toDateTime64(0, 9)
    )
    GROUP BY mode, evaluation
)
ARRAY JOIN parts AS one
"""

TRAINED = f"""
SELECT 1 + arrayCount(limit -> seconds > limit, limits) AS tenth, count() AS ended,
    countIf(rollout_id IN (
        SELECT rollout_id FROM raw_training_rollouts WHERE run_id = {{run_id:String}} AND trained AND {OF_MODEL}
    )) AS trained,
    min(seconds) AS min_seconds, max(seconds) AS max_seconds
FROM
(
    SELECT rollout_id, date_diff('microsecond', started_at, ended_at) / 1e6 AS seconds,
        (
            SELECT quantiles(0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)(
                date_diff('microsecond', started_at, ended_at) / 1e6)
            FROM rollouts WHERE run_id = {{run_id:String}} AND mode = 'train'
        ) AS limits
    FROM rollouts WHERE run_id = {{run_id:String}} AND mode = 'train'
)
GROUP BY tenth ORDER BY tenth
"""
"""Counts of ended and trained rollouts, by tenth of their duration."""

ALERTS = (
    f"SELECT reason, is_over, toUnixTimestamp64Milli(raised_at) AS raised_ms FROM ({RUN_ALERTS}) ORDER BY raised_at"
)
"""Alerts of a run that has ended; those of a living one stand in the heartbeats."""

LAST_SEEN = """
SELECT * FROM
(
    SELECT 'learner' AS role, '' AS id, model, toNullable(max(version)) AS version, toUInt64(max(step)) AS work,
        toUnixTimestamp64Milli(max(toDateTime64(ended_at, 3))) AS last_ms
    FROM raw_training_steps WHERE run_id = {run_id:String} GROUP BY model
    UNION ALL
    SELECT 'inference' AS role, node AS id, model, max(max_weight_version) AS version, toUInt64(uniqExact(execution_id,
        call)) AS work, toUnixTimestamp64Milli(max(toDateTime64(ended_at, 3))) AS last_ms
    FROM raw_model_calls WHERE run_id = {run_id:String} AND node != '' GROUP BY node, model
    UNION ALL
    SELECT 'runner' AS role, runner AS id, '' AS model, NULL AS version, toUInt64(uniqExact(execution_id)) AS work,
        toUnixTimestamp64Milli(max(toDateTime64(ended_at, 3))) AS last_ms
    FROM raw_attempts WHERE run_id = {run_id:String} GROUP BY runner
    UNION ALL
    SELECT 'grader' AS role, '' AS id, '' AS model, NULL AS version, toUInt64(uniqExact(execution_id)) AS work,
        toUnixTimestamp64Milli(max(toDateTime64(graded_at, 3))) AS last_ms
    FROM raw_grades WHERE run_id = {run_id:String} AND grading = 'live' HAVING work > 0
)
ORDER BY indexOf(['learner', 'inference', 'runner', 'grader'], role), id, model
"""
"""Processes that worked for a run: ``work`` is the last step of a learner, the model calls of a node, the attempts of
a runner, and those that the graders of the run have graded. Learners and graders have no names there."""
ACTIVATIONS = """
SELECT node, model, version, fetch_seconds, pause_seconds, toUnixTimestamp64Milli(at) AS activated_ms,
    count() OVER of_node AS swaps, avg(fetch_seconds) OVER of_node AS mean_fetch_seconds,
    avg(pause_seconds) OVER of_node AS mean_pause_seconds
FROM
(
    SELECT a.node AS node, a.model AS model, a.version AS version, a.fetch_seconds AS fetch_seconds,
        a.pause_seconds AS pause_seconds, a.activated_at AS at, v.created_at AS created_at
    FROM weight_activations AS a INNER JOIN weight_versions AS v ON a.model = v.model AND a.version = v.version
    WHERE v.run_id = {run_id:String} AND a.activated_at >= v.created_at - toIntervalSecond(5)
    ORDER BY at LIMIT 1 BY node, model, version
)
WINDOW of_node AS (PARTITION BY node, model)
ORDER BY activated_ms DESC LIMIT 1000
"""
"""Versions that nodes served of a model, with their start, the newest first; clocks may differ by seconds."""

ROLLOUT_FILTER = "run_id = {run_id:String} AND rollout_id = {rollout_id:String}"
ATTEMPT_FILTER = f"{ROLLOUT_FILTER} AND execution_id = {{execution_id:String}}"

TASK = f"""
SELECT toUnixTimestamp64Micro(enqueued_at) / 1000 AS enqueued_ms, task_id, input, labels, sampling_params, deadline
FROM raw_tasks WHERE {ROLLOUT_FILTER} LIMIT 1
"""

ATTEMPTS = f"""
SELECT task_id, attempt, execution_id, runner, mode, evaluation, agent, resolution, stream_sequence, outcome, reward,
    rewards, error, result, num_calls,
    prompt_tokens, response_tokens, num_truncated, min_weight_version, max_weight_version, newest_versions,
    model_seconds, tool_seconds, num_external_calls, num_unpriced_calls, external_cost, trace_id,
    toUnixTimestamp64Micro(enqueued_at) / 1000 AS enqueued_ms, toUnixTimestamp64Micro(started_at) / 1000 AS started_ms,
    toUnixTimestamp64Micro(ended_at) / 1000 AS ended_ms, toUnixTimestamp64Micro(stored_at) / 1000 AS stored_ms
FROM raw_attempts WHERE {ROLLOUT_FILTER} ORDER BY started_ms, stream_sequence LIMIT 1 BY execution_id
"""

EXECUTIONS = f"""
SELECT attempt, execution_id, toUnixTimestamp64Micro(min(started_at)) / 1000 AS started_ms
FROM raw_spans WHERE {ROLLOUT_FILTER} AND execution_id != '' GROUP BY attempt, execution_id ORDER BY started_ms
"""
"""Attempts that have spans; some of them may still run."""

SPANS = f"""
SELECT span_id, parent_span_id, name, kind, status, status_message, scope, attributes, resource, events,
    toUnixTimestamp64Micro(started_at) / 1000 AS start_ms, toUnixTimestamp64Micro(ended_at) / 1000 AS end_ms
FROM spans WHERE {ROLLOUT_FILTER} AND execution_id IN ('', {{execution_id:String}})
ORDER BY start_ms, end_ms DESC LIMIT {MAX_SPANS}
"""

CALLS = f"""
SELECT call, role, model, node, span_id, prompt_tokens, prompt_suffix_tokens, response_tokens, min_weight_version,
    max_weight_version,
    finish_reason, sampling_params,
    toUnixTimestamp64Micro(started_at) / 1000 AS start_ms, toUnixTimestamp64Micro(ended_at) / 1000 AS end_ms
FROM model_calls WHERE {ATTEMPT_FILTER} ORDER BY call
"""

PROMPT = f"""
SELECT c.model AS model, p.prompt_ids AS prompt_ids FROM model_calls AS c
INNER JOIN prompts AS p USING (run_id, rollout_id, execution_id, call)
WHERE {ATTEMPT_FILTER} AND call = {{call:UInt32}}
"""

CALL_PAYLOADS = f"""
SELECT call, request_prefix_refs, request, response_ids, logprobs, token_versions, token_texts, response
FROM raw_call_payloads WHERE {ATTEMPT_FILTER} ORDER BY call LIMIT 1 BY call
"""
"""A request is kept as what it adds to earlier ones: `rollout.expand_requests` puts them together."""

TRAINING_ROLLOUTS = f"""
SELECT model, step, version, advantage, trained, exclusion_reason, tokens, max_staleness, call_advantages
FROM raw_training_rollouts WHERE {ATTEMPT_FILTER} AND (model, step, epoch) IN
    (SELECT model, step, max(epoch) FROM raw_training_steps WHERE run_id = {{run_id:String}} GROUP BY model, step)
ORDER BY trained DESC, step LIMIT 1 BY model
"""
