"""Rollouts of a request, published where they are missing, and waited for."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

from clickhouse_connect.driver.client import Client

from lightningbus.bus.client import Bus
from lightningbus.run.errors import UserError
from lightningbus.run.evaluation.batch_progress import BatchProgress
from lightningbus.run.evaluation.publishing import publish_all
from lightningbus.run.evaluation.request import RolloutRequest
from lightningbus.run.evaluation.retrying_store import RetryingStore
from lightningbus.schemas import ids
from lightningbus.tasks.task_loading import TaskInput

T = TypeVar("T")

PUBLISH_SECONDS = 600.0
"""Longest wait for room in a full stream, unless rollouts may take longer."""
PAUSE_RATIO, MAX_PAUSE_SECONDS = 10.0, 5.0
"""Pause after a question to the store, as a multiple of the time it took: it takes long in a run of many rollouts."""
ENDED = "FROM rollouts WHERE run_id = {run_id:String} AND endsWith(task_id, {suffix:String})"


class RolloutBatch:
    """The rollouts of a request on tasks."""

    def __init__(self, request: RolloutRequest, inputs: Sequence[TaskInput]) -> None:
        self.request = request
        self.tasks = {ids.rollout_id(task.id, task.sample_index): task for task in request.tasks(inputs)}
        """The tasks, keyed by rollout id."""
        self.num_recorded = 0
        """Rollouts that had ended before, where `run` looks for them."""

    async def run(
        self,
        bus: Bus,
        store: RetryingStore,
        read: Callable[[Client], T],
        *,
        what: str,
        advice: str,
        missing: Collection[str] | None = None,
    ) -> T:
        """Publish what is missing, wait until all rollouts have ended, and return what ``read`` reads of them.

        ``missing``: ids of the rollouts to publish; default: all that have not ended. Raises `UserError`, which begins
        with ``what`` they are and ends with ``advice``, when none ends for the request's `patience`, or as
        `publish_all`.
        """
        now, patience = asyncio.get_running_loop().time, self.request.patience
        progress = BatchProgress(self.tasks, patience, now())
        try:
            async with asyncio.timeout_at(progress.gives_up_at) as limit:
                if missing is None:
                    progress.update(await store.ask(self._read_ended), now())
                    missing = progress.missing
                    self.num_recorded = progress.num_ended
                limit.reschedule(None)  # a full stream has a limit of its own
                new = [task for id, task in self.tasks.items() if id in missing]
                await publish_all(
                    bus, new, max(patience, PUBLISH_SECONDS), on_done=lambda: None, nonce=self.request.nonce
                )
                progress.restart(now())
                limit.reschedule(progress.gives_up_at)
                while True:
                    asked_at = now()
                    if progress.count(await store.ask(self._count_ended), now()):
                        progress.update(await store.ask(self._read_ended), now())
                    limit.reschedule(progress.gives_up_at)
                    if not progress.missing:
                        return await store.ask(read)
                    await asyncio.sleep(min(PAUSE_RATIO * (now() - asked_at), MAX_PAUSE_SECONDS))
                    await store.wait_for_change()
        except TimeoutError:
            raise UserError(
                f"{what}: {progress.num_ended} of {len(self.tasks)} rollouts ended, "
                f"and none in the last {patience:g} s: {advice}"
            ) from None

    def _read_ended(self, client: Client) -> list[str]:
        return [rollout_id for (rollout_id,) in self._query(client, "rollout_id")]

    def _count_ended(self, client: Client) -> int:
        return int(self._query(client, "count()")[0][0])

    def _query(self, client: Client, column: str) -> Sequence[Sequence[Any]]:
        parameters = {"run_id": self.request.run, "suffix": self.request.id_suffix}
        return client.query(f"SELECT {column} {ENDED}", parameters=parameters).result_rows
