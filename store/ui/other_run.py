"""Runs that have a store of their own, besides the store that the page reads."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from lightningbus.store.ui.client import QueryRow, Reader, StoreState
from lightningbus.store.ui.run_state import RunState


@dataclass(frozen=True, slots=True)
class OtherRun:
    """Summary of a run whose store is not open yet; None: not known.

    ``first_ms`` and ``last_ms`` are when it began and when it last did anything, in milliseconds since 1970. ``step``
    is that of the slowest model. ``means`` has the mean reward of each evaluation by weight version.
    """

    run_id: str
    state: RunState
    first_ms: float
    last_ms: float
    step: int | None = None
    max_steps: int | None = None
    rollouts: int | None = None
    """Rollouts of training."""
    reward: float | None = None
    """Mean reward of the last training step."""
    models: Sequence[str] = ()
    """Those that are trained, the one that agents call by name first."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Those of the learner of the first of them."""
    means: Mapping[str, Mapping[int, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OpenRun:
    """The store of such a run; ``run_id`` is the run's id in it."""

    reader: Reader
    run_id: str


class OtherRuns(Protocol):
    """Finds and opens runs that have a store of their own."""

    def has(self, run_id: str) -> bool:
        """Return whether a run has a store of its own that can be found."""

    def list(self) -> Sequence[OtherRun]:
        """List all such runs. May block."""

    def list_labels(self) -> Mapping[str, QueryRow]:
        """Return ``tags``, ``note`` and ``is_archived`` of runs that have any, by their ids. May block."""

    def find_end(self, run_id: str) -> RunState | None:
        """Return how the training of a run ended; None: it goes on, or it is not on record. May block."""

    async def open(self, run_id: str) -> OpenRun:
        """Open the store of a run; raises `lightningbus.store.ui.client.StoreGoneError`."""


class RunReader:
    """Sends each query to the store that has the run of its parameter ``run_id``.

    ``others`` is None where one store holds everything.
    """

    def __init__(self, latest: Reader, others: OtherRuns | None) -> None:
        self._latest, self._others = latest, others
        self._states: dict[str, StoreState] = {}

    def is_elsewhere(self, run_id: str) -> bool:
        """Return whether a run has a store of its own."""
        return self._others is not None and self._others.has(run_id)

    def list_others(self) -> Sequence[OtherRun]:
        """List all runs with a store of their own. May block."""
        return self._others.list() if self._others is not None else ()

    def list_labels(self) -> Mapping[str, QueryRow]:
        """Return the labels of runs that have any, by their ids. May block."""
        return self._others.list_labels() if self._others is not None else {}

    async def settle_state(self, run_id: str, state: RunState) -> RunState:
        """Return the state of a run whose store has ended: that of its files where a training is on record."""
        if self._others is None:
            return state
        return await asyncio.to_thread(self._others.find_end, run_id) or state

    def state_of(self, run_id: str) -> StoreState:
        """Return what the last query about a run read; without one, of the store that the page reads."""
        return self._states.get(run_id, self._latest.state) if self.is_elsewhere(run_id) else self._latest.state

    async def query(self, sql: str, **parameters: Any) -> list[QueryRow]:
        """Return all rows of a query, as JSON values; raises `QueryFailedError` or `StoreGoneError`."""
        (rows,) = await self.query_all(parameters, sql)
        return rows

    async def query_all(self, values: Mapping[str, Any], *statements: str) -> list[list[QueryRow]]:
        """Return all rows of each query, which all take the same parameters; raises as `query`."""
        run_id = values.get("run_id", "")
        if not run_id or self._others is None or not self._others.has(run_id):
            return await self._latest.query_all(values, *statements)
        run = await self._others.open(run_id)
        try:
            return await run.reader.query_all({**values, "run_id": run.run_id}, *statements)
        finally:
            self._states[run_id] = run.reader.state
