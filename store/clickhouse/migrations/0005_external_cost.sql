-- Calls of an attempt to models that no node answers, and what they cost.
ALTER TABLE {database}.raw_attempts{on_cluster} ADD COLUMN num_external_calls UInt32;
ALTER TABLE {database}.raw_attempts{on_cluster} ADD COLUMN num_unpriced_calls UInt32;
ALTER TABLE {database}.raw_attempts{on_cluster} ADD COLUMN external_cost Float64;
ALTER TABLE {database}.raw_rollouts{on_cluster} ADD COLUMN num_external_calls UInt32;
ALTER TABLE {database}.raw_rollouts{on_cluster} ADD COLUMN num_unpriced_calls UInt32;
ALTER TABLE {database}.raw_rollouts{on_cluster} ADD COLUMN external_cost Float64;
