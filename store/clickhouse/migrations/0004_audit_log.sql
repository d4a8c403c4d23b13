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
    asked DateTime64(9, 'UTC')
)
ENGINE = {replicated}ReplacingMergeTree ORDER BY (asked, id)
TTL toDateTime(asked) + INTERVAL 90 DAY
SETTINGS non_replicated_deduplication_window = 1000;

CREATE VIEW IF NOT EXISTS {database}.audit_log{on_cluster} AS SELECT * FROM {database}.raw_audit_log FINAL;
