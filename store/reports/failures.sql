-- view: failures
-- title: Attempts that failed, by outcome and cause
-- about: Numbers and ids in an error are written #, so that one cause is one row.
-- plot: bar x=cause y=attempts series=run,outcome
SELECT
    run, mode, outcome, replaceRegexpAll(error, '[0-9a-f]{8,}|[0-9]+(\\.[0-9]+)?', '#') AS cause, count() AS attempts,
    uniqExact(rollout) AS rollouts, countIf(standing = 2) AS tried_again, any(rollout) AS example, max(ended) AS last
FROM attempts
WHERE outcome != 'ok'
GROUP BY run, mode, outcome, cause
ORDER BY run, attempts DESC
