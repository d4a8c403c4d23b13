"""The state of all engines of a trainer on disk, written in line or beside the steps that follow."""

import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from lightningbus.common.processes import host_memory
from lightningbus.learner.engine import engine_state
from lightningbus.learner.training.distributed import ProcessGroup


class StateSaver:
    """Saves and loads engines, each in a directory of its own; every rank makes the same calls."""

    def __init__(self, group: ProcessGroup, engines: Mapping[str, Any]) -> None:
        """``engines`` by their directory, relative to that of a checkpoint."""
        self._group, self._engines = group, engines
        self._writing: threading.Thread | None = None

    def save(self, path: Path) -> None:
        """Write weights, optimiser, schedule and random state into a directory that every rank can reach."""
        self._write(path, self._collect())

    def begin_save(self, path: Path) -> Callable[[], None]:
        """Copy what `save` writes, and return the call that writes the copy, for any thread: it must be made once.

        Ranks other than the first write their part in a thread of their own. Where a host has no room for the copies of
        its ranks, everything is written now, and the call does nothing.
        """
        if self._writing is not None:
            self._writing.join()
        states = self._collect()
        if not self._has_room(states):
            self._write(path, states)
            return _do_nothing
        copies = {name: engine_state.copy(state) for name, state in states.items()}
        write = partial(self._write, path, copies)
        if self._group.rank > 0:
            self._writing = threading.Thread(target=write, name="checkpoint")
            self._writing.start()
        return write

    def load(self, path: Path) -> None:
        """Load what `save` wrote, also with another number of ranks."""
        for name, engine in self._engines.items():
            engine_state.load(engine, path / name)

    def _collect(self) -> dict[str, engine_state.State]:
        return {name: engine_state.collect(engine) for name, engine in self._engines.items()}

    def _has_room(self, states: Mapping[str, engine_state.State]) -> bool:
        """Return whether every host has room for a copy."""
        needed = sum(map(engine_state.count_bytes, states.values())) * self._group.ranks_of_host
        has_room = host_memory.has_room(needed, host_memory.available_bytes())
        return all(self._group.all_gather({self._group.rank: has_room}).values())

    def _write(self, path: Path, states: Mapping[str, engine_state.State]) -> None:
        for name, state in states.items():
            engine_state.write(state, path / name, self._group.for_checkpoints)


def _do_nothing() -> None: ...
