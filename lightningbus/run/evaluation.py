"""Held-out accuracy of one weight version, measured through the same bus, runners and inference nodes."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from clickhouse_connect.driver.client import Client

from bus.client import Bus
from bus.task_file import TaskInput
from lightningbus.run.publishing import expand_samples, publish_all
from lightningbus.run.role_process import UserError
from store.clickhouse.client import query_row

RESULTS = """
SELECT count() AS num_ended, countIf(outcome = 'ok') AS ok, avgIf(reward, outcome = 'ok') AS mean
FROM rollouts WHERE run_id = {run_id:String} AND endsWith(task_id, {suffix:String})
"""
VERSIONS = """
SELECT groupUniqArrayArray(token_versions) FROM completions
WHERE run_id = {run_id:String} AND endsWith(task_id, {suffix:String})
"""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Outcome of one evaluation; ``accuracy`` is the mean reward of all rollouts, a failed one counting as 0."""

    label: str
    version: int
    rollouts: int
    ok: int
    accuracy: float


async def evaluate(
    bus: Bus,
    sql: Client,
    run: str,
    problems: Sequence[TaskInput],
    *,
    label: str,
    version: int,
    samples: int,
    sampling: dict[str, Any],
    deadline: float = 120.0,
    agent: str = "default",
) -> Evaluation:
    """Publish every problem ``samples`` times, pinned to a weight version, and wait for all results in ClickHouse.

    Raises `UserError` when they are not there within ``deadline`` seconds, or when a token came from another version.
    """
    suffix = f"@{run}-{label}-v{version}"
    tasks = expand_samples(
        problems,
        samples,
        suffix,
        run_id=run,
        agent=agent,
        mode="eval",
        evaluation=label,
        weight_version=version,
        sampling_params=sampling,
        deadline=deadline,
    )
    published = sum(await publish_all(bus, tasks, timeout=deadline, on_done=lambda: None))
    parameters = {"run_id": run, "suffix": suffix}
    ended, ok, mean = 0, 0, 0.0
    try:
        async with asyncio.timeout(deadline), bus.fleet("store") as stores:
            while ended < published:
                await stores.wait_for_change()  # the store says each second what it has inserted
                ended, ok, mean = await asyncio.to_thread(query_row, sql, RESULTS, parameters)
    except TimeoutError:
        raise UserError(f"evaluation {label}: {ended} of {published} rollouts ended within {deadline:g} s") from None
    versions = (await asyncio.to_thread(query_row, sql, VERSIONS, parameters))[0]
    if list(versions) != [version]:
        raise UserError(f"evaluation {label} was pinned to version {version}, but versions {versions} answered")
    return Evaluation(label, version, published, ok, mean * ok / published if ok else 0.0)
