-- Calls of an attempt to models that no node answers, by model; the figures of each are JSON.
ALTER TABLE {database}.raw_attempts{on_cluster} ADD COLUMN external_models Map(LowCardinality(String), String);
ALTER TABLE {database}.raw_rollouts{on_cluster} ADD COLUMN external_models Map(LowCardinality(String), String);
