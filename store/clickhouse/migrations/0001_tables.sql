-- What is written: one table per event, each folded to one row per identity (ReplacingMergeTree), because events
-- arrive at least once. Nobody reads these tables; the views of the next migration do, with FINAL.
--
-- A row's partition and key are the event's own, never the time it was written, or it would not fold. keep_days is what
-- the store's settings said of the run when the row was written; 0 keeps it for ever.

CREATE TABLE IF NOT EXISTS {database}.raw_tasks{on_cluster}
(
    run LowCardinality(String),
    task String,
    rollout String,
    sample UInt32,
    samples UInt32,
    mode LowCardinality(String),
    agent LowCardinality(String),
    model LowCardinality(String),
    weight_version Nullable(UInt32),
    input String CODEC(ZSTD(3)),
    sampling LowCardinality(String),
    deadline Float64,
    max_attempts UInt16,
    published DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    keep_days UInt16
)
ENGINE = {replicated}ReplacingMergeTree ORDER BY (run, rollout)
TTL toDateTime(published) + toIntervalDay(keep_days) DELETE WHERE keep_days > 0
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS {database}.raw_attempts{on_cluster}
(
    run LowCardinality(String),
    task String,
    rollout String,
    sample UInt32,
    samples UInt32,
    attempt UInt16,
    execution String,
    trace_id String,
    mode LowCardinality(String),
    agent LowCardinality(String),
    runner LowCardinality(String),
    standing UInt8,
    outcome LowCardinality(String),
    reward Nullable(Float64),
    reward_span String,
    error String CODEC(ZSTD(3)),
    result String CODEC(ZSTD(3)),
    spans UInt32,
    calls UInt32,
    prompt_tokens UInt64 CODEC(T64, ZSTD(1)),
    response_tokens UInt64 CODEC(T64, ZSTD(1)),
    truncated UInt32,
    version_min Nullable(UInt32),
    version_max Nullable(UInt32),
    model_seconds Float64,
    tool_seconds Float64,
    published DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    started DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    ended DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    stored DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    stream_sequence UInt64,
    keep_days UInt16,
    INDEX by_execution execution TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX by_trace trace_id TYPE bloom_filter(0.01) GRANULARITY 1
)
ENGINE = {replicated}ReplacingMergeTree PARTITION BY toYYYYMM(started) ORDER BY (run, rollout, attempt, execution)
TTL toDateTime(started) + toIntervalDay(keep_days) DELETE WHERE keep_days > 0
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS {database}.raw_spans{on_cluster}
(
    run LowCardinality(String),
    task String,
    rollout String,
    attempt UInt16,
    execution String,
    trace_id String,
    span_id String,
    parent_span_id String,
    name LowCardinality(String),
    kind LowCardinality(String),
    start DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    end DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    status LowCardinality(String),
    status_message String,
    scope LowCardinality(String),
    attributes Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    resource Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    events String CODEC(ZSTD(1)),
    links String CODEC(ZSTD(1)),
    keep_days UInt16,
    INDEX by_execution execution TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX by_trace trace_id TYPE bloom_filter(0.01) GRANULARITY 1
)
ENGINE = {replicated}ReplacingMergeTree PARTITION BY toYYYYMM(start) ORDER BY (run, rollout, attempt, execution, span_id)
TTL toDateTime(start) + toIntervalDay(keep_days) DELETE WHERE keep_days > 0
SETTINGS non_replicated_deduplication_window = 1000;

-- A model call in a list: who, when, how much. Its tokens and texts are in the table after this one.
CREATE TABLE IF NOT EXISTS {database}.raw_model_calls{on_cluster}
(
    run LowCardinality(String),
    task String,
    rollout String,
    attempt UInt16,
    execution String,
    call UInt32,
    span_id String,
    mode LowCardinality(String),
    agent LowCardinality(String),
    role LowCardinality(String),
    model LowCardinality(String),
    node LowCardinality(String),
    prompt_tokens UInt32 CODEC(T64, ZSTD(1)),
    new_tokens UInt32 CODEC(T64, ZSTD(1)),
    response_tokens UInt32 CODEC(T64, ZSTD(1)),
    version_min Nullable(UInt32),
    version_max Nullable(UInt32),
    mean_logprob Float32,
    finish_reason LowCardinality(String),
    sampling LowCardinality(String),
    asked String CODEC(ZSTD(1)),
    answered String CODEC(ZSTD(1)),
    start DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    end DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    keep_days UInt16,
    INDEX by_execution execution TYPE bloom_filter(0.01) GRANULARITY 1
)
ENGINE = {replicated}ReplacingMergeTree PARTITION BY toYYYYMM(start) ORDER BY (run, rollout, attempt, execution, call)
TTL toDateTime(start) + toIntervalDay(keep_days) DELETE WHERE keep_days > 0
SETTINGS non_replicated_deduplication_window = 1000;

-- A prompt is pieces of earlier calls' own tokens (prompt_ids, then response_ids) and then its own prompt_ids; a request
-- likewise of earlier calls' requests. The view prompts puts them together.
CREATE TABLE IF NOT EXISTS {database}.raw_call_contents{on_cluster}
(
    run LowCardinality(String),
    task String,
    rollout String,
    attempt UInt16,
    execution String,
    call UInt32,
    prompt_prefix Array(Tuple(UInt32, UInt32)) CODEC(ZSTD(1)),
    prompt_ids Array(UInt32) CODEC(T64, ZSTD(1)),
    prompt_sha256 FixedString(32) CODEC(NONE),
    response_ids Array(UInt32) CODEC(T64, ZSTD(1)),
    logprobs Array(Float32) CODEC(ZSTD(1)),
    token_versions Array(UInt32) CODEC(ZSTD(1)),
    pieces Array(String) CODEC(ZSTD(1)),
    request_prefix Array(Tuple(UInt32, UInt32)) CODEC(ZSTD(1)),
    request String CODEC(ZSTD(3)),
    response String CODEC(ZSTD(3)),
    start DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    keep_days UInt16,
    INDEX by_execution execution TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX request_words request TYPE text(tokenizer = splitByNonAlpha),
    INDEX response_words response TYPE text(tokenizer = splitByNonAlpha)
)
ENGINE = {replicated}ReplacingMergeTree PARTITION BY toYYYYMM(start) ORDER BY (run, rollout, attempt, execution, call)
TTL toDateTime(start) + toIntervalDay(keep_days) DELETE WHERE keep_days > 0
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS {database}.raw_weight_versions{on_cluster}
(
    run LowCardinality(String),
    model LowCardinality(String),
    version UInt32,
    epoch UInt32,
    parent Nullable(UInt32),
    kind LowCardinality(String),
    transport LowCardinality(String),
    step UInt32,
    bytes UInt64,
    created DateTime64(9, 'UTC')
)
ENGINE = {replicated}ReplacingMergeTree ORDER BY (run, model, version, epoch)
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS {database}.raw_weight_applied{on_cluster}
(
    node LowCardinality(String),
    model LowCardinality(String),
    version UInt32,
    fetch_seconds Float64,
    pause_seconds Float64,
    applied DateTime64(9, 'UTC')
)
ENGINE = {replicated}ReplacingMergeTree ORDER BY (model, version, node, applied)
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS {database}.raw_training_steps{on_cluster}
(
    run LowCardinality(String),
    model LowCardinality(String),
    step UInt32,
    epoch UInt32,
    version UInt32,
    started DateTime64(9, 'UTC'),
    ended DateTime64(9, 'UTC'),
    metrics Map(LowCardinality(String), Float64),
    digest String,
    settings String CODEC(ZSTD(3))
)
ENGINE = {replicated}ReplacingMergeTree ORDER BY (run, model, step, epoch)
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS {database}.raw_training_uses{on_cluster}
(
    run LowCardinality(String),
    model LowCardinality(String),
    step UInt32,
    epoch UInt32,
    version UInt32,
    rollout String,
    task String,
    attempt UInt16,
    execution String,
    outcome LowCardinality(String),
    reward Nullable(Float64),
    advantage Float64,
    trained Bool,
    reason LowCardinality(String),
    tokens UInt32,
    staleness_max UInt32,
    place Int32,
    credit Array(Float64)
)
ENGINE = {replicated}ReplacingMergeTree ORDER BY (run, model, step, epoch, rollout, execution)
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS {database}.raw_alarms{on_cluster}
(
    role LowCardinality(String),
    reason String,
    over Bool,
    raised DateTime64(9, 'UTC')
)
ENGINE = {replicated}ReplacingMergeTree ORDER BY (raised, role, over)
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS {database}.raw_dead_letters{on_cluster}
(
    stream LowCardinality(String),
    sequence UInt64,
    subject String,
    deliveries UInt32,
    reason String,
    headers Map(String, String),
    payload String,
    dead DateTime64(9, 'UTC')
)
ENGINE = {replicated}ReplacingMergeTree ORDER BY (stream, sequence)
SETTINGS non_replicated_deduplication_window = 1000;

-- The list of runs, kept as attempts are written. A materialised view sees every insert, also one that comes twice: so
-- it holds only what a second time does not change.
CREATE TABLE IF NOT EXISTS {database}.raw_runs{on_cluster}
(
    run LowCardinality(String),
    mode LowCardinality(String),
    rollouts AggregateFunction(uniq, String),
    first SimpleAggregateFunction(min, DateTime64(9, 'UTC')),
    last SimpleAggregateFunction(max, DateTime64(9, 'UTC'))
)
ENGINE = {replicated}AggregatingMergeTree ORDER BY (run, mode);

CREATE MATERIALIZED VIEW IF NOT EXISTS {database}.into_raw_runs{on_cluster} TO {database}.raw_runs AS
SELECT run, mode, uniqState(rollout) AS rollouts, min(started) AS first, max(ended) AS last
FROM {database}.raw_attempts GROUP BY run, mode;
