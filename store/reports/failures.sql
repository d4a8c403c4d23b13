-- title: Failed attempts by outcome and cause
-- about: Numbers and ids in an error are written #, so that one cause is one row.
-- plot: bar x=cause y=attempts series=run_id,outcome
SELECT
    run_id, mode, evaluation, outcome, replaceRegexpAll(error, '[0-9a-f]{8,}|[0-9]+(\\.[0-9]+)?', '#') AS cause, count() AS attempts,
    uniqExact(rollout_id) AS rollouts, countIf(resolution = 'retried') AS tried_again, any(rollout_id) AS example, max(ended_at) AS last
FROM attempts
WHERE outcome != 'ok'
GROUP BY run_id, mode, evaluation, outcome, cause
ORDER BY run_id, attempts DESC
