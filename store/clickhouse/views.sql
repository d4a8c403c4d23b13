-- What is read: every name here is exact, whatever was delivered twice. Rows fold within their partition, so partitions
-- need not be merged with each other.

CREATE OR REPLACE VIEW {database}.tasks{on_cluster} AS
SELECT * EXCEPT retention_days FROM {database}.raw_tasks FINAL;

CREATE OR REPLACE VIEW {database}.attempts{on_cluster} AS
SELECT * EXCEPT retention_days FROM {database}.raw_attempts FINAL
SETTINGS do_not_merge_across_partitions_select_final = 1;

CREATE OR REPLACE VIEW {database}.spans{on_cluster} AS
SELECT * EXCEPT retention_days FROM {database}.raw_spans FINAL;

CREATE OR REPLACE VIEW {database}.model_calls{on_cluster} AS
SELECT * EXCEPT retention_days FROM {database}.raw_model_calls FINAL
SETTINGS do_not_merge_across_partitions_select_final = 1;

-- What was sampled, call by call.
CREATE OR REPLACE VIEW {database}.completions{on_cluster} AS
SELECT run_id, task_id, rollout_id, attempt, execution_id, call, response_ids, logprobs, token_versions, token_texts, response
FROM {database}.raw_call_payloads FINAL
SETTINGS do_not_merge_across_partitions_select_final = 1;

-- What was asked, call by call: prompts and requests as they were, put together from what each call added.
CREATE OR REPLACE VIEW {database}.prompts{on_cluster} AS
SELECT
    run_id, task_id, rollout_id, attempt, execution_id, item.1 AS call,
    arrayConcat(arrayFlatten(arrayMap(ref -> arraySlice(token_ids[ref.1], 1, ref.2), item.2)), item.3) AS prompt_ids,
    concat(arrayStringConcat(arrayMap(ref -> substring(requests[ref.1], 1, ref.2), item.4)), item.5) AS request,
    item.6 AS prompt_sha256
FROM
(
    SELECT
        run_id, task_id, rollout_id, attempt, execution_id,
        mapFromArrays(groupArray(call), groupArray(arrayConcat(prompt_ids, response_ids))) AS token_ids,
        mapFromArrays(groupArray(call), groupArray(request)) AS requests,
        groupArray((call, prompt_prefix_refs, prompt_ids, request_prefix_refs, request, prompt_sha256)) AS calls
    FROM {database}.raw_call_payloads FINAL
    GROUP BY run_id, task_id, rollout_id, attempt, execution_id
)
ARRAY JOIN calls AS item
SETTINGS do_not_merge_across_partitions_select_final = 1;

-- Must always be empty: prompts whose digest is not that of the tokens they were put together from.
CREATE OR REPLACE VIEW {database}.check_prompt_digests{on_cluster} AS
SELECT run_id, rollout_id, execution_id, call FROM {database}.prompts
WHERE prompt_sha256 != '' AND prompt_sha256 != toFixedString('', 32) AND prompt_sha256 != SHA256(arrayStringConcat(arrayMap(
    id -> char(id % 256, intDiv(id, 256) % 256, intDiv(id, 65536) % 256, intDiv(id, 16777216)), prompt_ids)));

CREATE OR REPLACE VIEW {database}.weight_versions{on_cluster} AS SELECT * FROM {database}.raw_weight_versions FINAL;
CREATE OR REPLACE VIEW {database}.weight_activations{on_cluster} AS SELECT * FROM {database}.raw_weight_activations FINAL;
CREATE OR REPLACE VIEW {database}.release_decisions{on_cluster} AS SELECT * FROM {database}.raw_release_decisions FINAL;
CREATE OR REPLACE VIEW {database}.prompt_decisions{on_cluster} AS SELECT * FROM {database}.raw_prompt_decisions FINAL;
CREATE OR REPLACE VIEW {database}.prompt_versions{on_cluster} AS SELECT * FROM {database}.raw_prompt_versions FINAL;
CREATE OR REPLACE VIEW {database}.rollout_audits{on_cluster} AS SELECT * FROM {database}.raw_rollout_audits FINAL;
CREATE OR REPLACE VIEW {database}.grades{on_cluster} AS SELECT * FROM {database}.raw_grades FINAL;
CREATE OR REPLACE VIEW {database}.reviews{on_cluster} AS SELECT * FROM {database}.raw_reviews FINAL;
CREATE OR REPLACE VIEW {database}.task_decisions{on_cluster} AS SELECT * FROM {database}.raw_task_decisions FINAL;
CREATE OR REPLACE VIEW {database}.audit_verdicts{on_cluster} AS SELECT * FROM {database}.raw_audit_verdicts FINAL;
CREATE OR REPLACE VIEW {database}.audit_log{on_cluster} AS SELECT * FROM {database}.raw_audit_log FINAL;
CREATE OR REPLACE VIEW {database}.alerts{on_cluster} AS SELECT * FROM {database}.raw_alerts FINAL;
CREATE OR REPLACE VIEW {database}.dead_letters{on_cluster} AS SELECT * FROM {database}.raw_dead_letters FINAL;

-- One row per rollout: the attempt that schemas/trajectory/attempt_selection.py selects, as the learner does.
-- resolution: final (a result) or abandoned (the rollout was given up).
CREATE OR REPLACE VIEW {database}.rollouts{on_cluster} AS
SELECT * EXCEPT retention_days FROM {database}.raw_rollouts FINAL;

-- A step that a learner undid by going back to its checkpoint stays until a later epoch has made the step again.
CREATE OR REPLACE VIEW {database}.training_steps{on_cluster} AS
SELECT * FROM {database}.raw_training_steps FINAL
WHERE (run_id, model, step, epoch) IN (
    SELECT run_id, model, step, max(epoch) FROM {database}.raw_training_steps GROUP BY run_id, model, step
);

-- Without the rollouts of an undone step that a later epoch has trained in another step.
CREATE OR REPLACE VIEW {database}.training_rollouts{on_cluster} AS
SELECT * FROM {database}.raw_training_rollouts FINAL
WHERE (run_id, model, step, epoch) IN (SELECT run_id, model, step, epoch FROM {database}.training_steps)
    AND NOT (trained AND (run_id, model, rollout_id, epoch) IN (
        SELECT run_id, model, rollout_id, arrayJoin(arrayPopBack(arraySort(groupUniqArray(epoch))))
        FROM {database}.raw_training_rollouts
        WHERE trained AND (run_id, model) IN (
            SELECT run_id, model FROM {database}.raw_training_steps GROUP BY run_id, model HAVING uniqExact(epoch) > 1
        )
        GROUP BY run_id, model, rollout_id
    ));

-- One row per sampled token: what it was, how likely, and which weight version made it.
CREATE OR REPLACE VIEW {database}.tokens{on_cluster} AS
SELECT run_id, task_id, rollout_id, attempt, execution_id, call, number - 1 AS position, token, logprob, version,
    if(number <= length(token_texts), token_texts[number], '') AS token_text
FROM {database}.completions
ARRAY JOIN
    arrayEnumerate(response_ids) AS number, response_ids AS token, logprobs AS logprob, token_versions AS version;

-- Tokens trained on, by rollout and version that sampled them: age is the updates between the weights that sampled a token
-- and those that trained it.
CREATE OR REPLACE VIEW {database}.trained_tokens{on_cluster} AS
SELECT run_id, model, step, task_id, rollout_id, attempt, execution_id, token_version, num_tokens,
    toInt64(version) - 1 - toInt64(token_version) AS age
FROM {database}.training_rollouts
ARRAY JOIN mapKeys(version_tokens) AS token_version, mapValues(version_tokens) AS num_tokens
WHERE trained;

-- Published, and never ended: must stay empty once the queue is.
CREATE OR REPLACE VIEW {database}.check_unfinished_rollouts{on_cluster} AS
SELECT run_id, task_id, rollout_id, sample_index, mode, evaluation, enqueued_at FROM {database}.tasks
WHERE (run_id, rollout_id) NOT IN (SELECT run_id, rollout_id FROM {database}.rollouts);

-- Must always be empty.
CREATE OR REPLACE VIEW {database}.check_duplicate_training{on_cluster} AS
SELECT run_id, model, rollout_id, groupArray(step) AS steps FROM {database}.training_rollouts WHERE trained
GROUP BY run_id, model, rollout_id HAVING count() > 1;

-- Tokens that a verdict applies to, by rollout and model; trained: in a step that started after the verdict, which must never be.
CREATE OR REPLACE VIEW {database}.quarantined_rollouts{on_cluster} AS
WITH
(
    SELECT groupArray((model, engine_id, version, reason, decided_at))
    FROM
    (
        SELECT *, maxIf(decided_at, action = 'overturned')
            OVER (PARTITION BY model, engine_id, if(engine_id = '', version, 0)) AS overturned_at
        FROM {database}.audit_verdicts
    )
    WHERE action = 'convicted' AND decided_at > overturned_at
) AS verdicts
SELECT
    c.run_id AS run_id, c.model AS model, c.rollout_id AS rollout_id, c.execution_id AS execution_id, c.engine_id AS engine_id,
    c.verdict.4 AS reason, c.verdict.5 AS decided_at, u.step AS step,
    ifNull(u.trained AND u.started_at > decided_at, false) AS trained,
    ifNull(u.trained AND u.started_at <= decided_at, false) AS trained_before,
    ifNull(u.exclusion_reason, '') AS exclusion_reason
FROM
(
    SELECT
        run_id, model, rollout_id, execution_id, engine_id,
        arrayFirst(v -> v.1 = model AND ((v.2 = engine_id AND version >= v.3) OR (v.2 = '' AND version = v.3)), verdicts)
            AS verdict
    FROM (SELECT run_id, rollout_id, execution_id, model, engine_ids, engine_versions FROM {database}.model_calls WHERE mode = 'train')
    ARRAY JOIN engine_ids AS engine_id, engine_versions AS version
    WHERE notEmpty(verdicts) AND verdict.1 != ''
    ORDER BY verdict.5 LIMIT 1 BY run_id, model, rollout_id, execution_id
) AS c
LEFT JOIN
(
    SELECT r.run_id AS run_id, r.model AS model, r.execution_id AS execution_id, r.step AS step, r.trained AS trained,
        r.exclusion_reason AS exclusion_reason, s.started_at AS started_at
    FROM {database}.training_rollouts AS r
    INNER JOIN {database}.training_steps AS s ON r.run_id = s.run_id AND r.model = s.model AND r.step = s.step
) AS u ON c.run_id = u.run_id AND c.execution_id = u.execution_id AND c.model = u.model;

-- Must always be empty.
CREATE OR REPLACE VIEW {database}.check_quarantined_training{on_cluster} AS
SELECT run_id, model, rollout_id, step, reason FROM {database}.quarantined_rollouts WHERE trained;

CREATE OR REPLACE VIEW {database}.runs{on_cluster} AS
SELECT run_id, mode, evaluation, uniqMerge(rollouts) AS rollouts, min(first_started_at) AS first_started_at,
    max(last_ended_at) AS last_ended_at
FROM {database}.raw_runs GROUP BY run_id, mode, evaluation;
