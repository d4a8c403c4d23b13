"""Curves over training steps and over time. Pure.

A curve has at most `MAX_POINTS` points however long the run is: steps next to each other are averaged, ``per_point`` of
them.
"""

from collections.abc import Mapping
from typing import Any

from lightningbus.store.ui.queries import MAX_POINTS, OF_MODEL

MAX_METRICS = 24
"""Metrics of one query, so that its rows stay below the limit of a query."""
MAX_BUCKETS = 60
MIN_BUCKET_SECONDS = 10
"""Shortest interval of a curve over time."""

METRIC_NAMES = """
SELECT arrayJoin(mapKeys(metrics)) AS name, count() AS steps, uniqExact(model) AS models FROM raw_training_steps
WHERE run_id = {run_id:String} GROUP BY name ORDER BY name
"""
"""Every metric that the learner stored for a run."""

METRICS = f"""
SELECT model, name, intDiv(at, width) * width AS step, any(width) AS per_point, avg(metrics[name]) AS value
FROM
(
    SELECT model, toUInt32(step) AS at, metrics, intDiv(max(step) OVER (), {MAX_POINTS}) + 1 AS width
    FROM training_steps WHERE run_id = {{run_id:String}} AND {OF_MODEL}
)
ARRAY JOIN {{names:Array(String)}} AS name
WHERE mapContains(metrics, name) GROUP BY model, name, step ORDER BY model, name, step
"""
"""The chosen metrics, a row for each point of each curve."""

SETTINGS = """
SELECT model, step, settings FROM raw_training_steps WHERE run_id = {run_id:String}
ORDER BY step DESC, epoch DESC LIMIT 1 BY model
"""
"""The settings in force in the last step of each model."""

THROUGHPUT = f"""
WITH
(
    SELECT (min(started_at), max(ended_at)) FROM raw_attempts WHERE run_id = {{run_id:String}}
) AS bounds,
greatest({MIN_BUCKET_SECONDS}, intDiv(date_diff('second', bounds.1, bounds.2), {MAX_BUCKETS}) + 1) AS width
SELECT toUnixTimestamp64Milli(bounds.1) + 1000 * width * bucket AS start_ms, any(width) AS bucket_seconds,
    least(toFloat64(width), date_diff('millisecond', bounds.1, bounds.2) / 1000 - width * bucket) AS seconds,
    count() AS rollouts, sum(num_calls) AS calls, sum(response_tokens) AS response_tokens
FROM attempts WHERE run_id = {{run_id:String}}
GROUP BY bounds, width, intDiv(date_diff('second', bounds.1, ended_at), width) AS bucket ORDER BY start_ms
"""
"""Results by interval of ``bucket_seconds``; ``seconds`` is less in the last one if the run ended within it."""

IDLE_NODES = f"""
WITH
(
    SELECT (toUnixTimestamp64Milli(min(started_at)), toUnixTimestamp64Milli(max(ended_at))) FROM raw_model_calls
    WHERE run_id = {{run_id:String}} AND node != ''
) AS bounds,
1000 * greatest({MIN_BUCKET_SECONDS}, intDiv(bounds.2 - bounds.1, 1000 * {MAX_BUCKETS}) + 1) AS width
SELECT node, bounds.1 + width * bucket AS start_ms, any(width) / 1000 AS bucket_seconds,
    least(width, bounds.2 - bounds.1 - width * bucket) / 1000 AS seconds,
    intervalLengthSum(greatest(start, width * bucket), least(end, width * (bucket + 1))) / 1000 AS busy_seconds
FROM
(
    SELECT node, toUnixTimestamp64Milli(started_at) - bounds.1 AS start,
        toUnixTimestamp64Milli(ended_at) - bounds.1 AS end,
        arrayJoin(range(toUInt32(intDiv(start, width)), toUInt32(intDiv(end, width) + 1))) AS bucket
    FROM raw_model_calls WHERE run_id = {{run_id:String}} AND node != ''
)
GROUP BY bounds, width, node, bucket ORDER BY node, start_ms
"""
"""Seconds in which a node answered at least one model call of the run, by interval; endpoints that are no node of ours
have no name."""


def build_metrics_query(params: Mapping[str, str]) -> tuple[str, dict[str, Any]]:
    """Build the query for the metrics of the parameter ``names``, separated by commas, with its parameters.

    Raises ValueError with a sentence when there are none or too many.
    """
    names = list(dict.fromkeys(name for name in params.get("names", "").split(",") if name))
    if not names:
        raise ValueError("names: name the metrics, separated by commas")
    if len(names) > MAX_METRICS:
        raise ValueError(f"names: at most {MAX_METRICS} metrics, not {len(names)}")
    return METRICS, {"names": names, "model": params.get("model", "")}
