-- title: Duration of weight swaps
-- about: Seconds for each node and model from the learner's publishing until the node serves a version, with the time to fetch, the time to verify, and the pause of generation. kv_cache: keep or recompute for calls in flight, empty where adapters were added.
-- plot: line x=version y=publish_to_serving_seconds,pause_seconds series=run_id,model,node
SELECT
    v.run_id AS run_id, a.model AS model, a.node AS node, a.version AS version, v.bytes AS bytes, a.fetch_seconds AS fetch_seconds,
    a.verify_seconds AS verify_seconds, a.pause_seconds AS pause_seconds, a.kv_cache AS kv_cache,
    greatest(0., date_diff('microsecond', v.created_at, a.activated_at) / 1e6) AS publish_to_serving_seconds
FROM weight_activations AS a
INNER JOIN weight_versions AS v ON a.model = v.model AND a.version = v.version
ORDER BY run_id, model, node, version
LIMIT 1 BY run_id, model, node, version
