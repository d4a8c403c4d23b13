-- Written tables: one per event, each folded to one row per identity (ReplacingMergeTree), because events arrive at
-- least once. Readers use the views of the next migration, which read with FINAL.
--
-- A row's partition and key come from the event, never from the time of the insert: otherwise rows would not fold.
-- retention_days is the store's setting for the run at the time of the insert; 0 keeps the row forever.

CREATE TABLE IF NOT EXISTS {database}.raw_tasks{on_cluster}
(
    run_id LowCardinality(String),
    task_id String,
    rollout_id String,
    sample_index UInt32,
    group_size UInt32,
    mode LowCardinality(String),
    evaluation LowCardinality(String),
    agent LowCardinality(String),
    model LowCardinality(String),
    weight_versions Map(LowCardinality(String), UInt32),
    role_models Map(LowCardinality(String), String),
    prompt_versions Map(LowCardinality(String), UInt32),
    input String CODEC(ZSTD(3)),
    sampling_params LowCardinality(String),
    labels Map(LowCardinality(String), String),
    deadline Float64,
    max_attempts UInt16,
    enqueued_at DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    retention_days UInt16
)
ENGINE = {replicated}ReplacingMergeTree ORDER BY (run_id, rollout_id)
TTL toDateTime(enqueued_at) + toIntervalDay(retention_days) DELETE WHERE retention_days > 0
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS {database}.raw_attempts{on_cluster}
(
    run_id LowCardinality(String),
    task_id String,
    rollout_id String,
    sample_index UInt32,
    group_size UInt32,
    attempt UInt16,
    execution_id String,
    trace_id String,
    mode LowCardinality(String),
    evaluation LowCardinality(String),
    agent LowCardinality(String),
    runner LowCardinality(String),
    resolution Enum8('final' = 0, 'abandoned' = 1, 'retried' = 2),
    outcome LowCardinality(String),
    reward Nullable(Float64),
    rewards Map(LowCardinality(String), Float64),
    reward_span String,
    error String CODEC(ZSTD(3)),
    result String CODEC(ZSTD(3)),
    num_spans UInt32,
    num_calls UInt32,
    prompt_tokens UInt64 CODEC(T64, ZSTD(1)),
    response_tokens UInt64 CODEC(T64, ZSTD(1)),
    num_truncated UInt32,
    min_weight_version Nullable(UInt32),
    max_weight_version Nullable(UInt32),
    newest_versions Map(LowCardinality(String), UInt32),
    model_seconds Float64,
    tool_seconds Float64,
    enqueued_at DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    started_at DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    ended_at DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    stored_at DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    stream_sequence UInt64,
    selection_rank UInt64 MATERIALIZED bitShiftLeft(toUInt64(3 - toInt8(resolution)), 62) - 1 - stream_sequence,
    retention_days UInt16,
    INDEX by_execution execution_id TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX by_trace trace_id TYPE bloom_filter(0.01) GRANULARITY 1
)
ENGINE = {replicated}ReplacingMergeTree PARTITION BY toYYYYMM(started_at) ORDER BY (run_id, rollout_id, attempt, execution_id)
TTL toDateTime(started_at) + toIntervalDay(retention_days) DELETE WHERE retention_days > 0
SETTINGS non_replicated_deduplication_window = 1000;

-- One attempt per rollout, kept as attempts are written: the one that schemas/trajectory/attempt_selection.py selects, which
-- is the first final one in stream order, or the first abandoned one while there is no final one. It has the highest rank.
CREATE TABLE IF NOT EXISTS {database}.raw_rollouts{on_cluster} AS {database}.raw_attempts
ENGINE = {replicated}ReplacingMergeTree(selection_rank) ORDER BY (run_id, rollout_id)
TTL toDateTime(started_at) + toIntervalDay(retention_days) DELETE WHERE retention_days > 0;

CREATE MATERIALIZED VIEW IF NOT EXISTS {database}.raw_rollouts_mv{on_cluster} TO {database}.raw_rollouts AS
SELECT * FROM {database}.raw_attempts WHERE resolution != 'retried';

-- Agents say when their spans began: neither partitions nor retention may depend on that. An insert takes rows of at
-- most 100 partitions, and a date before 1970 or after 2106 wraps in a TTL.
CREATE TABLE IF NOT EXISTS {database}.raw_spans{on_cluster}
(
    run_id LowCardinality(String),
    task_id String,
    rollout_id String,
    attempt UInt16,
    execution_id String,
    trace_id String,
    span_id String,
    parent_span_id String,
    name LowCardinality(String),
    kind LowCardinality(String),
    started_at DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    ended_at DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    status LowCardinality(String),
    status_message String,
    scope LowCardinality(String),
    attributes Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    resource Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    events String CODEC(ZSTD(1)),
    links String CODEC(ZSTD(1)),
    stored_at DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    retention_days UInt16,
    INDEX by_execution execution_id TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX by_trace trace_id TYPE bloom_filter(0.01) GRANULARITY 1
)
ENGINE = {replicated}ReplacingMergeTree ORDER BY (run_id, rollout_id, attempt, execution_id, span_id)
TTL toDateTime(stored_at) + toIntervalDay(retention_days) DELETE WHERE retention_days > 0
SETTINGS non_replicated_deduplication_window = 1000;

-- A model call in a list: who, when, how much. Its tokens and texts are in the table after this one.
CREATE TABLE IF NOT EXISTS {database}.raw_model_calls{on_cluster}
(
    run_id LowCardinality(String),
    task_id String,
    rollout_id String,
    attempt UInt16,
    execution_id String,
    call UInt32,
    span_id String,
    mode LowCardinality(String),
    agent LowCardinality(String),
    role LowCardinality(String),
    model LowCardinality(String),
    node LowCardinality(String),
    prompt_tokens UInt32 CODEC(T64, ZSTD(1)),
    prompt_suffix_tokens UInt32 CODEC(T64, ZSTD(1)),
    response_tokens UInt32 CODEC(T64, ZSTD(1)),
    min_weight_version Nullable(UInt32),
    max_weight_version Nullable(UInt32),
    engine_ids Array(LowCardinality(String)),
    engine_versions Array(UInt32),
    prompt_versions Map(LowCardinality(String), UInt32),
    mean_logprob Float32,
    finish_reason LowCardinality(String),
    sampling_params LowCardinality(String),
    request_preview String CODEC(ZSTD(1)),
    response_preview String CODEC(ZSTD(1)),
    started_at DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    ended_at DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    retention_days UInt16,
    INDEX by_execution execution_id TYPE bloom_filter(0.01) GRANULARITY 1
)
ENGINE = {replicated}ReplacingMergeTree PARTITION BY toYYYYMM(started_at) ORDER BY (run_id, rollout_id, attempt, execution_id, call)
TTL toDateTime(started_at) + toIntervalDay(retention_days) DELETE WHERE retention_days > 0
SETTINGS non_replicated_deduplication_window = 1000;

-- A prompt is pieces of earlier calls' own tokens (prompt_ids, then response_ids) and then its own prompt_ids; a request
-- likewise of earlier calls' requests. The view prompts puts them together.
CREATE TABLE IF NOT EXISTS {database}.raw_call_payloads{on_cluster}
(
    run_id LowCardinality(String),
    task_id String,
    rollout_id String,
    attempt UInt16,
    execution_id String,
    call UInt32,
    prompt_prefix_refs Array(Tuple(UInt32, UInt32)) CODEC(ZSTD(1)),
    prompt_ids Array(UInt32) CODEC(T64, ZSTD(1)),
    prompt_sha256 FixedString(32) CODEC(NONE),
    response_ids Array(UInt32) CODEC(T64, ZSTD(1)),
    logprobs Array(Float32) CODEC(ZSTD(1)),
    token_versions Array(UInt32) CODEC(ZSTD(1)),
    token_texts Array(String) CODEC(ZSTD(1)),
    request_prefix_refs Array(Tuple(UInt32, UInt32)) CODEC(ZSTD(1)),
    request String CODEC(ZSTD(3)),
    response String CODEC(ZSTD(3)),
    started_at DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    retention_days UInt16,
    INDEX by_execution execution_id TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX request_words request TYPE text(tokenizer = splitByNonAlpha),
    INDEX response_words response TYPE text(tokenizer = splitByNonAlpha)
)
ENGINE = {replicated}ReplacingMergeTree PARTITION BY toYYYYMM(started_at) ORDER BY (run_id, rollout_id, attempt, execution_id, call)
TTL toDateTime(started_at) + toIntervalDay(retention_days) DELETE WHERE retention_days > 0
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS {database}.raw_weight_versions{on_cluster}
(
    run_id LowCardinality(String),
    model LowCardinality(String),
    version UInt32,
    epoch UInt32,
    parent Nullable(UInt32),
    change Nullable(Float64),
    kind LowCardinality(String),
    transport LowCardinality(String),
    step UInt32,
    bytes UInt64,
    created_at DateTime64(9, 'UTC')
)
ENGINE = {replicated}ReplacingMergeTree ORDER BY (run_id, model, version, epoch)
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS {database}.raw_weight_activations{on_cluster}
(
    node LowCardinality(String),
    model LowCardinality(String),
    version UInt32,
    fetch_seconds Float64,
    verify_seconds Float64,
    pause_seconds Float64,
    kv_cache LowCardinality(String),
    activated_at DateTime64(9, 'UTC')
)
ENGINE = {replicated}ReplacingMergeTree ORDER BY (model, version, node, activated_at)
SETTINGS non_replicated_deduplication_window = 1000;

-- Which version was approved, revoked or pinned, by whom, why, and the canary's metrics.
CREATE TABLE IF NOT EXISTS {database}.raw_release_decisions{on_cluster}
(
    model LowCardinality(String),
    version UInt32,
    action LowCardinality(String),
    actor String,
    reason String,
    metrics Map(LowCardinality(String), Float64),
    decided_at DateTime64(9, 'UTC')
)
ENGINE = {replicated}ReplacingMergeTree ORDER BY (model, version, decided_at, action)
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS {database}.raw_prompt_versions{on_cluster}
(
    name LowCardinality(String),
    version UInt32,
    text String CODEC(ZSTD(3)),
    sha256 String,
    agent LowCardinality(String),
    role LowCardinality(String),
    parent Nullable(UInt32),
    run_id LowCardinality(String),
    proposal_id String,
    created_at DateTime64(9, 'UTC')
)
ENGINE = {replicated}ReplacingMergeTree ORDER BY (name, version)
SETTINGS non_replicated_deduplication_window = 1000;

-- Which version of a prompt was approved, revoked or pinned, by whom, why, and the figures of its evaluation.
CREATE TABLE IF NOT EXISTS {database}.raw_prompt_decisions{on_cluster}
(
    name LowCardinality(String),
    version UInt32,
    action LowCardinality(String),
    actor String,
    reason String,
    metrics Map(LowCardinality(String), Float64),
    decided_at DateTime64(9, 'UTC')
)
ENGINE = {replicated}ReplacingMergeTree ORDER BY (name, version, decided_at, action)
SETTINGS non_replicated_deduplication_window = 1000;

-- What the auditor recomputed: tokens of one call, by one engine, of one version. evidence: natural log.
CREATE TABLE IF NOT EXISTS {database}.raw_rollout_audits{on_cluster}
(
    run_id LowCardinality(String),
    rollout_id String,
    execution_id String,
    call UInt32,
    model LowCardinality(String),
    engine_id LowCardinality(String),
    version UInt32,
    num_tokens UInt32,
    num_differing UInt32,
    mean_difference Float64,
    max_difference Float64,
    tolerance Float64,
    evidence Float64,
    audited_at DateTime64(9, 'UTC')
)
ENGINE = {replicated}ReplacingMergeTree ORDER BY (run_id, rollout_id, execution_id, call, engine_id, version)
SETTINGS non_replicated_deduplication_window = 1000;

-- Whose tokens are quarantined: those of an engine from a version on, or with an empty engine_id all of one version.
CREATE TABLE IF NOT EXISTS {database}.raw_audit_verdicts{on_cluster}
(
    model LowCardinality(String),
    action LowCardinality(String),
    engine_id LowCardinality(String),
    version UInt32,
    failed_version UInt32,
    reason String,
    num_tokens UInt32,
    evidence Float64,
    decided_at DateTime64(9, 'UTC')
)
ENGINE = {replicated}ReplacingMergeTree ORDER BY (model, decided_at, engine_id, version)
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS {database}.raw_training_steps{on_cluster}
(
    run_id LowCardinality(String),
    model LowCardinality(String),
    step UInt32,
    epoch UInt32,
    version UInt32,
    started_at DateTime64(9, 'UTC'),
    ended_at DateTime64(9, 'UTC'),
    metrics Map(LowCardinality(String), Float64),
    batch_sha256 String,
    settings String CODEC(ZSTD(3))
)
ENGINE = {replicated}ReplacingMergeTree ORDER BY (run_id, model, step, epoch)
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS {database}.raw_training_rollouts{on_cluster}
(
    run_id LowCardinality(String),
    model LowCardinality(String),
    step UInt32,
    epoch UInt32,
    version UInt32,
    rollout_id String,
    task_id String,
    attempt UInt16,
    execution_id String,
    outcome LowCardinality(String),
    reward Nullable(Float64),
    advantage Float64,
    trained Bool,
    exclusion_reason LowCardinality(String),
    tokens UInt32,
    max_staleness UInt32,
    batch_index Int32,
    call_advantages Array(Float64),
    call_roles Array(LowCardinality(String)),
    call_tokens Array(UInt32),
    version_tokens Map(UInt32, UInt32)
)
ENGINE = {replicated}ReplacingMergeTree ORDER BY (run_id, model, step, epoch, rollout_id, execution_id)
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS {database}.raw_alerts{on_cluster}
(
    role LowCardinality(String),
    reason String,
    resolved Bool,
    fired_at DateTime64(9, 'UTC')
)
ENGINE = {replicated}ReplacingMergeTree ORDER BY (fired_at, role, resolved)
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS {database}.raw_dead_letters{on_cluster}
(
    stream LowCardinality(String),
    sequence UInt64,
    subject String,
    num_delivered UInt32,
    reason String,
    headers Map(String, String),
    payload String,
    dead_lettered_at DateTime64(9, 'UTC')
)
ENGINE = {replicated}ReplacingMergeTree ORDER BY (stream, sequence)
SETTINGS non_replicated_deduplication_window = 1000;

-- Who asked JetStream for what, and what came of it: JetStream's own advisories.
CREATE TABLE IF NOT EXISTS {database}.raw_audit_log{on_cluster}
(
    id String,
    account LowCardinality(String),
    user LowCardinality(String),
    client LowCardinality(String),
    host LowCardinality(String),
    server LowCardinality(String),
    request LowCardinality(String),
    target String,
    error String,
    requested_at DateTime64(9, 'UTC')
)
ENGINE = {replicated}ReplacingMergeTree ORDER BY (requested_at, id)
TTL toDateTime(requested_at) + INTERVAL 90 DAY
SETTINGS non_replicated_deduplication_window = 1000;

-- The list of runs, kept as attempts are written. A materialised view sees every insert, also one that comes twice: so
-- it holds only what a second time does not change.
CREATE TABLE IF NOT EXISTS {database}.raw_runs{on_cluster}
(
    run_id LowCardinality(String),
    mode LowCardinality(String),
    evaluation LowCardinality(String),
    rollouts AggregateFunction(uniq, String),
    first_started_at SimpleAggregateFunction(min, DateTime64(9, 'UTC')),
    last_ended_at SimpleAggregateFunction(max, DateTime64(9, 'UTC'))
)
ENGINE = {replicated}AggregatingMergeTree ORDER BY (run_id, mode, evaluation);

CREATE MATERIALIZED VIEW IF NOT EXISTS {database}.raw_runs_mv{on_cluster} TO {database}.raw_runs AS
SELECT run_id, mode, evaluation, uniqState(rollout_id) AS rollouts, min(started_at) AS first_started_at,
    max(ended_at) AS last_ended_at
FROM {database}.raw_attempts GROUP BY run_id, mode, evaluation;
