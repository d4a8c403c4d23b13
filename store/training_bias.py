"""Detects that training leaves out slow rollouts, or many that the agent failed."""

from collections import Counter
from collections.abc import Callable

from clickhouse_connect.driver.client import Client

from lightningbus.alerts.table import (
    MAX_FAILED,
    MAX_GAP,
    MIN_FAILED_ROLLOUTS,
    MIN_ROLLOUTS,
    NUM_FAILED_STEPS,
    NUM_STEPS,
    describe,
)
from lightningbus.schemas.text import shorten_line

ERROR_CHARACTERS = 100
SHARES = """
WITH last AS
(
    SELECT run_id, model, max(step) AS step FROM training_steps
    GROUP BY run_id, model HAVING max(ended_at) > now64() - toIntervalMinute(10)
),
recent AS
(
    SELECT u.run_id AS run_id, u.model AS model, u.rollout_id AS rollout_id, max(u.trained) AS is_trained
    FROM training_rollouts AS u INNER JOIN last AS l ON u.run_id = l.run_id AND u.model = l.model
    WHERE u.step > toInt64(l.step) - {num_steps:Int64}
        AND u.exclusion_reason NOT IN ('training was over', 'without signal')
        AND NOT (u.outcome = 'agent_error' AND NOT u.trained)
    GROUP BY run_id, model, rollout_id
),
timed AS
(
    SELECT recent.run_id AS run_id, model, is_trained, date_diff('microsecond', r.started_at, r.ended_at) AS duration
    FROM recent INNER JOIN rollouts AS r ON recent.run_id = r.run_id AND recent.rollout_id = r.rollout_id
),
slow AS (SELECT run_id, model, quantile(0.9)(duration) AS limit FROM timed GROUP BY run_id, model)
SELECT t.run_id AS run_id, t.model AS model, count() AS num_rollouts, avg(is_trained) AS share,
    avgIf(is_trained, duration >= limit) AS slow_share
FROM timed AS t INNER JOIN slow ON t.run_id = slow.run_id AND t.model = slow.model
GROUP BY run_id, model ORDER BY run_id, model
"""
"""Share of the newest rollouts that was trained, by run and model trained in the last ten minutes.

A rollout left out because the agent failed tells nothing: its duration is not why. `FAILED` counts it.
"""
FAILED = """
WITH last AS
(
    SELECT run_id, model, max(step) AS last_step FROM training_steps
    GROUP BY run_id, model HAVING max(ended_at) > now64() - toIntervalMinute(10)
        AND JSONExtractString(argMax(settings, (step, epoch)), 'failed_rollouts') != 'zero'
),
recent AS
(
    SELECT u.run_id AS run_id, u.model AS model, u.rollout_id AS rollout_id,
        max(u.outcome IN ('agent_error', 'timeout') AND NOT u.trained) AS is_left_out
    FROM training_rollouts AS u INNER JOIN last AS l ON u.run_id = l.run_id AND u.model = l.model
    WHERE u.step > toInt64(l.last_step) - {num_steps:Int64} AND u.exclusion_reason != 'training was over'
    GROUP BY run_id, model, rollout_id
)
SELECT recent.run_id AS run_id, model, count() AS num_rollouts, avg(is_left_out) AS share,
    topKIf(1)(if(r.error = '', r.outcome, r.error), is_left_out)[1] AS error
FROM recent INNER JOIN rollouts AS r ON recent.run_id = r.run_id AND recent.rollout_id = r.rollout_id
GROUP BY run_id, model ORDER BY run_id, model
"""
"""Share of the newest rollouts that is left out because the agent failed, and their commonest error."""


def find_bias(client: Client) -> str:
    """Word a sentence about the runs whose training is of some rollouts more than of others; empty if there is none.

    Blocks, and raises clickhouse-connect's errors.
    """
    slow = _describe_runs(client, SHARES, NUM_STEPS, _describe_slow)
    failed = _describe_runs(client, FAILED, NUM_FAILED_STEPS, _describe_failed)
    return "; ".join(filter(None, (slow, failed)))


def _describe_runs(client: Client, sql: str, num_steps: int, describe_run: Callable[..., str]) -> str:
    """Word what a query finds of the newest steps of each run and model; empty if that is nothing."""
    rows = client.query(sql, parameters={"num_steps": num_steps}).result_rows
    num_models = Counter(run_id for run_id, *_ in rows)
    return "; ".join(
        filter(
            None,
            (
                describe_run(run_id, f", model {model}," if num_models[run_id] > 1 else "", *figures)
                for run_id, model, *figures in rows
            ),
        )
    )


def _describe_slow(run: str, of_model: str, num_rollouts: int, share: float, slow_share: float) -> str:
    if num_rollouts < MIN_ROLLOUTS or share - slow_share <= MAX_GAP:
        return ""
    return describe("slow_left_out", run=run, of_model=of_model, slow_share=slow_share, share=share)


def _describe_failed(run: str, of_model: str, num_rollouts: int, share: float, error: str) -> str:
    if num_rollouts < MIN_FAILED_ROLLOUTS or share < MAX_FAILED:
        return ""
    shortened = shorten_line(error, ERROR_CHARACTERS)
    return describe("failed_left_out", run=run, of_model=of_model, share=share, error=shortened)
