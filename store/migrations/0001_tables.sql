-- What is written: one table per event, each folded to one row per identity (ReplacingMergeTree), because events
-- arrive at least once. Nobody reads these tables; the views of the next migration do, with FINAL.

CREATE TABLE IF NOT EXISTS {database}.raw_tasks
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
    sampling String,
    deadline Float64,
    max_attempts UInt16,
    published DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1))
)
ENGINE = ReplacingMergeTree ORDER BY (run, rollout)
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS {database}.raw_attempts
(
    run LowCardinality(String),
    task String,
    rollout String,
    sample UInt32,
    samples UInt32,
    attempt UInt16,
    execution String,
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
    started DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    ended DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    stream_sequence UInt64
)
ENGINE = ReplacingMergeTree ORDER BY (run, rollout, attempt, execution)
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS {database}.raw_spans
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
    events String CODEC(ZSTD(3))
)
ENGINE = ReplacingMergeTree PARTITION BY toYYYYMM(start) ORDER BY (run, rollout, attempt, execution, span_id)
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS {database}.raw_model_calls
(
    run LowCardinality(String),
    task String,
    rollout String,
    attempt UInt16,
    execution String,
    call UInt32,
    mode LowCardinality(String),
    role LowCardinality(String),
    model LowCardinality(String),
    node LowCardinality(String),
    prompt_ids Array(UInt32) CODEC(ZSTD(1)),
    response_ids Array(UInt32) CODEC(ZSTD(1)),
    logprobs Array(Float32) CODEC(ZSTD(1)),
    token_versions Array(UInt32) CODEC(ZSTD(1)),
    version_min Nullable(UInt32),
    version_max Nullable(UInt32),
    finish_reason LowCardinality(String),
    sampling String,
    request String CODEC(ZSTD(3)),
    response String CODEC(ZSTD(3)),
    start DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    end DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1))
)
ENGINE = ReplacingMergeTree PARTITION BY toYYYYMM(start) ORDER BY (run, rollout, attempt, execution, call)
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS {database}.raw_weight_versions
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
ENGINE = ReplacingMergeTree ORDER BY (run, model, version, epoch)
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS {database}.raw_weight_applied
(
    node LowCardinality(String),
    model LowCardinality(String),
    version UInt32,
    fetch_seconds Float64,
    pause_seconds Float64,
    applied DateTime64(9, 'UTC')
)
ENGINE = ReplacingMergeTree ORDER BY (model, version, node, applied)
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS {database}.raw_training_steps
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
ENGINE = ReplacingMergeTree ORDER BY (run, model, step, epoch)
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS {database}.raw_training_uses
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
ENGINE = ReplacingMergeTree ORDER BY (run, model, step, epoch, rollout, execution)
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS {database}.raw_alarms
(
    role LowCardinality(String),
    reason String,
    over Bool,
    raised DateTime64(9, 'UTC')
)
ENGINE = ReplacingMergeTree ORDER BY (raised, role, over)
SETTINGS non_replicated_deduplication_window = 1000;

CREATE TABLE IF NOT EXISTS {database}.raw_dead_letters
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
ENGINE = ReplacingMergeTree ORDER BY (stream, sequence)
SETTINGS non_replicated_deduplication_window = 1000;
