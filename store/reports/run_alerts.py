"""SQL of the alerts that were raised while a run went on. Pure."""

OF_RUN = "WHERE run_id = {run_id:String}"
RUN_ALERTS = f"""
SELECT role, reason, min(fired_at) AS raised_at, argMax(resolved, fired_at) AS is_over FROM alerts
WHERE fired_at >= (SELECT minOrNull(enqueued_at) FROM raw_tasks {OF_RUN})
    AND fired_at < (
        SELECT ifNull(minOrNull(begun_at), now64(9) + INTERVAL 1 YEAR)
        FROM (SELECT min(enqueued_at) AS begun_at FROM raw_tasks GROUP BY run_id)
        WHERE begun_at > greatest(
            (SELECT max(enqueued_at) FROM raw_tasks {OF_RUN}), (SELECT max(ended_at) FROM raw_attempts {OF_RUN})
        )
    )
GROUP BY role, reason HAVING countIf(NOT resolved) > 0 ORDER BY raised_at, role, reason
"""
"""Query of a run's alerts, earliest first. Alerts name no run: those until the first task of a later run count."""
