-- The reward that counts for a task: '' is the main one, NULL the one that each model is trained on.
ALTER TABLE {database}.raw_tasks{on_cluster} ADD COLUMN reward_name LowCardinality(Nullable(String));
