"""The runs of this directory besides the latest: what their files say of them, and their stores, opened when asked."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from lightningbus.common.aio import cancel_and_wait
from lightningbus.run.run_data.followed_run import OPENING_ERRORS, followed
from lightningbus.run.run_data.local_files import find_directory
from lightningbus.run.run_data.training_record import choose_state, read_training
from lightningbus.run.run_directory.directory import RUNS, RunDirectory
from lightningbus.run.run_directory.labels import read_all_labels
from lightningbus.run.run_directory.occupancy import is_up
from lightningbus.run.run_directory.run_times import find_last_active_at, find_started_at
from lightningbus.store.ui.client import StoreGoneError
from lightningbus.store.ui.other_run import OpenRun, OtherRun
from lightningbus.store.ui.run_state import RunState

UNUSED_SECONDS = 60.0
"""A store that nobody has asked for so long is closed."""
STORED_RUNS = "SELECT run_id FROM runs GROUP BY run_id ORDER BY max(last_ended_at) DESC"


@dataclass(slots=True)
class _Opened:
    run: OpenRun
    following: "asyncio.Task[None]"
    exits: AsyncExitStack
    used_at: float


class OtherRuns:
    """All runs with a store of their own but the latest, by the names of their directories."""

    def __init__(self, database: str) -> None:
        self._database = database
        self._opened: dict[str, _Opened] = {}
        self._opening = asyncio.Lock()

    def find(self, name: str) -> RunDirectory | None:
        """Return the directory of one of them."""
        run, latest = RunDirectory.named(name), RunDirectory.latest()
        if run is None or name.startswith(".") or run.path.is_symlink() or not run.has_stored_data():
            return None
        return None if latest is not None and latest.path.resolve() == run.path.resolve() else run

    def has(self, run_id: str) -> bool:
        """Return whether this is one of them."""
        return self.find(run_id) is not None

    def list(self) -> list[OtherRun]:
        """Describe all of them from their files. Blocks."""
        names = sorted(path.name for path in RUNS.iterdir()) if RUNS.is_dir() else []
        return [_describe(run) for name in names if (run := self.find(name)) is not None]

    def list_labels(self) -> dict[str, dict[str, Any]]:
        """Read the labels of all runs here, by the names of their directories and by their ids. Blocks."""
        return {
            run_id: {"tags": labels.tags, "note": labels.note, "is_archived": labels.is_archived}
            for run_id, labels in read_all_labels(RUNS).items()
        }

    def find_end(self, run_id: str) -> RunState | None:
        """Return how the training of a run here ended; None: it is up, or no training of it is on record. Blocks."""
        run = find_directory(run_id)
        if run is None or is_up(run):
            return None
        training = read_training(run)
        return choose_state(False, training) if training.has_training else None

    async def open(self, run_id: str) -> OpenRun:
        """Open the store of one of them; raises `StoreGoneError` when it cannot be opened."""
        async with self._opening:
            opened = self._opened.get(run_id)
            if opened is None or opened.following.done():
                await self._close(run_id)
                opened = self._opened[run_id] = await self._start(run_id)
            opened.used_at = time.monotonic()
            return opened.run

    async def _start(self, name: str) -> _Opened:
        async with AsyncExitStack() as exits:
            try:
                run = await exits.enter_async_context(followed(self.find(name), None, self._database))
            except OPENING_ERRORS as error:
                raise StoreGoneError(f"Run {name} cannot be opened: {error}") from error
            stored = [row["run_id"] for row in await run.reader.query(STORED_RUNS)]
            # its directory may have been moved aside, with a time at the end of its name
            run_id = name if name in stored or not stored else stored[0]
            return _Opened(OpenRun(run.reader, run_id), run.following, exits.pop_all(), time.monotonic())

    async def _close(self, name: str) -> None:
        if (opened := self._opened.pop(name, None)) is not None:
            await opened.exits.aclose()

    @asynccontextmanager
    async def closing(self) -> AsyncIterator[None]:
        """Close what nobody asks any more while the block runs, and all at its end."""
        sweeper = asyncio.create_task(self._sweep())
        try:
            yield
        finally:
            await cancel_and_wait(sweeper)
            for name in list(self._opened):
                await self._close(name)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(UNUSED_SECONDS / 4)
            async with self._opening:
                for name, opened in list(self._opened.items()):
                    if time.monotonic() - opened.used_at > UNUSED_SECONDS:
                        await self._close(name)


def _describe(run: RunDirectory) -> OtherRun:
    training = read_training(run)
    results, learners = training.results, dict(training.learners)
    settings = next(iter(learners.values()), {})
    other = OtherRun(
        run.path.name,
        choose_state(is_up(run), training),
        first_ms=1000 * find_started_at(run.path).timestamp(),
        last_ms=1000 * find_last_active_at(run.path).timestamp(),
        step=training.steps,
        max_steps=training.max_steps,
        models=list(learners),
        settings=settings,
    )
    if results is None:
        return other
    means = {
        label: {each.version: each.mean_reward for each in results.evaluations if each.label == label}
        for label in dict.fromkeys(each.label for each in results.evaluations)
    }
    return replace(
        other,
        rollouts=max(0, results.rollouts - sum(each.rollouts for each in results.evaluations)),
        reward=results.reward,
        models=[results.model, *(name for name in results.models if name != results.model)],
        settings=settings or {"model_path": str(results.model_path)},
        means=means,
    )
