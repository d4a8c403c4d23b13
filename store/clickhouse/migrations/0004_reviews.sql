-- What people say about rollouts. A later review by the same person replaces the one before.
CREATE TABLE IF NOT EXISTS {database}.raw_reviews{on_cluster}
(
    run_id LowCardinality(String),
    rollout_id String,
    execution_id String,
    reviewer LowCardinality(String),
    score Nullable(Float64),
    note String CODEC(ZSTD(3)),
    dataset LowCardinality(String),
    reviewed_at DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1))
)
ENGINE = {replicated}ReplacingMergeTree(reviewed_at) ORDER BY (run_id, rollout_id, reviewer)
SETTINGS non_replicated_deduplication_window = 1000;
