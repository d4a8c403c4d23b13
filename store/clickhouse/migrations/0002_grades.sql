-- Grades of attempts, in as many gradings as there were: none replaces another. A replay of a dead letter gives a second
-- grade in the same grading; the later one counts. reward: NULL where grading failed.
CREATE TABLE IF NOT EXISTS {database}.raw_grades{on_cluster}
(
    run_id LowCardinality(String),
    task_id String,
    rollout_id String,
    execution_id String,
    grading LowCardinality(String),
    graders_sha256 String,
    reward Nullable(Float64),
    rewards Map(LowCardinality(String), Float64),
    error String CODEC(ZSTD(3)),
    num_judge_calls UInt32,
    num_cached UInt32,
    prompt_tokens UInt64,
    response_tokens UInt64,
    cost Float64,
    started_at DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1)),
    graded_at DateTime64(9, 'UTC') CODEC(Delta, ZSTD(1))
)
ENGINE = {replicated}ReplacingMergeTree(graded_at) ORDER BY (run_id, grading, rollout_id, execution_id)
SETTINGS non_replicated_deduplication_window = 1000;
