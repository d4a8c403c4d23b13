-- What is read: every name here is exact, whatever was delivered twice. Rows fold within their partition, so partitions
-- need not be merged with each other.

CREATE VIEW IF NOT EXISTS {database}.tasks{on_cluster} AS
SELECT * EXCEPT keep_days FROM {database}.raw_tasks FINAL;

CREATE VIEW IF NOT EXISTS {database}.attempts{on_cluster} AS
SELECT * EXCEPT keep_days FROM {database}.raw_attempts FINAL
SETTINGS do_not_merge_across_partitions_select_final = 1;

CREATE VIEW IF NOT EXISTS {database}.spans{on_cluster} AS
SELECT * EXCEPT keep_days FROM {database}.raw_spans FINAL
SETTINGS do_not_merge_across_partitions_select_final = 1;

CREATE VIEW IF NOT EXISTS {database}.model_calls{on_cluster} AS
SELECT * EXCEPT keep_days FROM {database}.raw_model_calls FINAL
SETTINGS do_not_merge_across_partitions_select_final = 1;

-- What was sampled, call by call.
CREATE VIEW IF NOT EXISTS {database}.answers{on_cluster} AS
SELECT run, task, rollout, attempt, execution, call, response_ids, logprobs, token_versions, pieces, response
FROM {database}.raw_call_contents FINAL
SETTINGS do_not_merge_across_partitions_select_final = 1;

-- What was asked, call by call: prompts and requests as they were, put together from what each call added.
CREATE VIEW IF NOT EXISTS {database}.prompts{on_cluster} AS
SELECT
    run, task, rollout, attempt, execution, one.1 AS call,
    arrayConcat(arrayFlatten(arrayMap(piece -> arraySlice(own_ids[piece.1], 1, piece.2), one.2)), one.3) AS prompt_ids,
    concat(arrayStringConcat(arrayMap(piece -> substring(own_text[piece.1], 1, piece.2), one.4)), one.5) AS request,
    one.6 AS prompt_sha256
FROM
(
    SELECT
        run, task, rollout, attempt, execution,
        mapFromArrays(groupArray(call), groupArray(arrayConcat(prompt_ids, response_ids))) AS own_ids,
        mapFromArrays(groupArray(call), groupArray(request)) AS own_text,
        groupArray((call, prompt_prefix, prompt_ids, request_prefix, request, prompt_sha256)) AS calls
    FROM {database}.raw_call_contents FINAL
    GROUP BY run, task, rollout, attempt, execution
)
ARRAY JOIN calls AS one
SETTINGS do_not_merge_across_partitions_select_final = 1;

-- Must always be empty: prompts whose digest is not that of the tokens they were put together from.
CREATE VIEW IF NOT EXISTS {database}.broken_prompts{on_cluster} AS
SELECT run, rollout, execution, call FROM {database}.prompts
WHERE prompt_sha256 != '' AND prompt_sha256 != toFixedString('', 32) AND prompt_sha256 != SHA256(arrayStringConcat(arrayMap(
    id -> char(id % 256, intDiv(id, 256) % 256, intDiv(id, 65536) % 256, intDiv(id, 16777216)), prompt_ids)));

CREATE VIEW IF NOT EXISTS {database}.weight_versions{on_cluster} AS SELECT * FROM {database}.raw_weight_versions FINAL;
CREATE VIEW IF NOT EXISTS {database}.weight_applied{on_cluster} AS SELECT * FROM {database}.raw_weight_applied FINAL;
CREATE VIEW IF NOT EXISTS {database}.alarms{on_cluster} AS SELECT * FROM {database}.raw_alarms FINAL;
CREATE VIEW IF NOT EXISTS {database}.dead_letters{on_cluster} AS SELECT * FROM {database}.raw_dead_letters FINAL;

-- One row per rollout: the attempt that schemas/trajectory/attempt_selection.py says it is, the learner's choice as well. standing is
-- 0: a result, 1: it came to nothing, 2: it was tried again.
CREATE VIEW IF NOT EXISTS {database}.rollouts{on_cluster} AS
SELECT * FROM {database}.attempts WHERE standing < 2 ORDER BY standing, stream_sequence LIMIT 1 BY run, rollout;

-- A step that a learner undid by going back to its checkpoint is replaced by the same step of its next epoch.
CREATE VIEW IF NOT EXISTS {database}.training_steps{on_cluster} AS
SELECT * FROM {database}.raw_training_steps FINAL ORDER BY epoch DESC LIMIT 1 BY run, model, step;

CREATE VIEW IF NOT EXISTS {database}.training_uses{on_cluster} AS
SELECT * FROM {database}.raw_training_uses FINAL
WHERE (run, model, step, epoch) IN (SELECT run, model, step, epoch FROM {database}.training_steps);

-- One row per sampled token: what it was, how likely, and which weight version made it.
CREATE VIEW IF NOT EXISTS {database}.token_versions{on_cluster} AS
SELECT run, task, rollout, attempt, execution, call, place - 1 AS position, token, logprob, version,
    if(place <= length(pieces), pieces[place], '') AS piece
FROM {database}.answers
ARRAY JOIN
    arrayEnumerate(response_ids) AS place, response_ids AS token, logprobs AS logprob, token_versions AS version;

-- Published, and never ended: must stay empty once the queue is.
CREATE VIEW IF NOT EXISTS {database}.lost_rollouts{on_cluster} AS
SELECT run, task, rollout, sample, mode, published FROM {database}.tasks
WHERE (run, rollout) NOT IN (SELECT run, rollout FROM {database}.rollouts);

-- Must always be empty.
CREATE VIEW IF NOT EXISTS {database}.trained_twice{on_cluster} AS
SELECT run, model, rollout, groupArray(step) AS steps FROM {database}.training_uses WHERE trained
GROUP BY run, model, rollout HAVING count() > 1;

CREATE VIEW IF NOT EXISTS {database}.runs{on_cluster} AS
SELECT run, mode, uniqMerge(rollouts) AS rollouts, min(first) AS first, max(last) AS last
FROM {database}.raw_runs GROUP BY run, mode;
