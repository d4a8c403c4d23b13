-- title: How long a new version takes to be served, and how long generation stands still for it
-- about: By node and model: from the learner's publishing to the node serving it, the time it took to fetch, then to verify, and the pause. kv_cache: whether calls in flight kept their KV cache or had it recomputed, empty where adapters were added.
-- plot: line x=version y=publish_to_serving_seconds,pause_seconds series=run_id,model,node
SELECT
    v.run_id AS run_id, a.model AS model, a.node AS node, a.version AS version, v.bytes AS bytes, a.fetch_seconds AS fetch_seconds,
    a.verify_seconds AS verify_seconds, a.pause_seconds AS pause_seconds, a.kv_cache AS kv_cache,
    greatest(0., date_diff('microsecond', v.created_at, a.activated_at) / 1e6) AS publish_to_serving_seconds
FROM weight_activations AS a
INNER JOIN weight_versions AS v ON a.model = v.model AND a.version = v.version
ORDER BY run_id, model, node, version
LIMIT 1 BY run_id, model, node, version
