-- Decisions of learners about groups. A decision that is published again after a restart is the same one.
CREATE TABLE IF NOT EXISTS {database}.raw_task_decisions{on_cluster}
(
    run_id LowCardinality(String),
    model LowCardinality(String),
    task_id String,
    source_task String,
    decision LowCardinality(String),
    passed Float64,
    failed Float64,
    weight Float64,
    share Float64,
    decided_at DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1))
)
ENGINE = {replicated}ReplacingMergeTree(decided_at) ORDER BY (run_id, model, decision, task_id)
SETTINGS non_replicated_deduplication_window = 1000;
