"""Labels of evaluations that the record of a run has already."""

from collections.abc import Iterable
from functools import partial

from clickhouse_connect.driver.client import Client

from lightningbus.bus.client import Bus
from lightningbus.run.errors import UserError
from lightningbus.run.evaluation.request import RolloutRequest
from lightningbus.run.evaluation.retrying_store import RetryingStore

OTHERS = """
SELECT DISTINCT weight_versions FROM tasks
WHERE run_id = {run_id:String} AND evaluation = {evaluation:String} AND NOT endsWith(task_id, {suffix:String})
"""


async def check_labels(bus: Bus, client: Client, requests: Iterable[RolloutRequest]) -> None:
    """Raise `UserError` where an evaluation of the same label and version has another agent, tasks or settings.

    Tables and curves have one row for a label and a version of the model that agents call by name. They would average
    both. A request that is on record itself goes on with its rollouts.
    """
    async with bus.fleet("store") as stores:
        store = RetryingStore(client, stores)
        for request in requests:
            if await store.ask(partial(is_label_used, request=request)):
                version = request.weight_versions.get(request.model)
                of_version = "" if version is None else f" of version {version}"
                raise UserError(
                    f"label: {request.evaluation!r}{of_version} is on record, of another agent, other tasks or other "
                    "settings, and both would be averaged: give another label, or leave it out for date and time"
                )


def is_label_used(client: Client, request: RolloutRequest) -> bool:
    """Return whether the store has tasks of the label and the main model's version that are not the request's."""
    suffix = request.with_versions_in_ids().id_suffix
    parameters = {"run_id": request.run, "evaluation": request.evaluation, "suffix": suffix}
    rows = client.query(OTHERS, parameters=parameters).result_rows
    pinned = request.weight_versions.get(request.model)
    return any(versions.get(request.model) == pinned for (versions,) in rows)
