ALTER TABLE {database}.raw_weight_applied{on_cluster}
ADD COLUMN IF NOT EXISTS verify_seconds Float64 AFTER fetch_seconds;

CREATE OR REPLACE VIEW {database}.weight_applied{on_cluster} AS SELECT * FROM {database}.raw_weight_applied FINAL;

-- Which version was released, revoked or pinned, by whom, why, and what its trial showed.
CREATE TABLE IF NOT EXISTS {database}.raw_weight_decisions{on_cluster}
(
    model LowCardinality(String),
    version UInt32,
    what LowCardinality(String),
    who String,
    why String,
    figures Map(LowCardinality(String), Float64),
    decided DateTime64(9, 'UTC')
)
ENGINE = {replicated}ReplacingMergeTree ORDER BY (model, version, decided, what)
SETTINGS non_replicated_deduplication_window = 1000;

CREATE VIEW IF NOT EXISTS {database}.weight_decisions{on_cluster} AS SELECT * FROM {database}.raw_weight_decisions FINAL;
