-- title: Sampled tokens, recomputed with the weights of their version
-- about: Recomputed calls by engine, model and weight version, with the tokens that differ by more than the tolerance, the verdict if there is one, and the rollouts it applies to. excluded: rollouts kept out of training because of the verdict. trained_before: rollouts trained in a step that had started before the verdict; to undo that, go back to a checkpoint before first_step.
-- plot: line x=version y=mean_difference series=engine_id,model
SELECT
    a.run_id AS run_id, a.engine_id AS engine_id, a.model AS model, a.version AS version, a.calls AS calls, a.tokens AS tokens, a.differing AS differing,
    a.mean_difference AS mean_difference, a.max_difference AS max_difference,
    if(q.reason != '', q.reason, '') AS verdict,
    q.quarantined AS quarantined, q.excluded AS excluded, q.trained_before AS trained_before, q.first_step AS first_step
FROM
(
    SELECT
        run_id, engine_id, model, version, count() AS calls, sum(num_tokens) AS tokens, sum(num_differing) AS differing,
        sum(r.mean_difference * num_tokens) / tokens AS mean_difference, max(r.max_difference) AS max_difference
    FROM rollout_audits AS r GROUP BY run_id, engine_id, model, version
) AS a
LEFT JOIN
(
    SELECT
        run_id, engine_id, model, any(q.reason) AS reason, count() AS quarantined, countIf(startsWith(exclusion_reason, 'quarantined')) AS excluded,
        countIf(q.trained_before) AS trained_before, minIf(step, q.trained_before) AS first_step
    FROM quarantined_rollouts AS q GROUP BY run_id, engine_id, model
) AS q ON a.run_id = q.run_id AND a.engine_id = q.engine_id AND a.model = q.model
ORDER BY run_id, engine_id, model, version
