"""Versions loaded into one engine: which are routable, how many calls each serves, which are evictable. Pure."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager


def select_version(routable: Sequence[int], pinned: str | None, preferred: str | None) -> int | None:
    """Choose the version that serves a call, of the routable ones, newest last; None: the call is rejected.

    Pinned: this version or none. Preferred: this version or the newest. Both are values of the call's headers.
    """
    requested = preferred if pinned is None else pinned
    match = next((version for version in routable if str(version) == requested), None)
    if match is not None or pinned is not None:
        return match
    return routable[-1] if routable else None


def capacity(max_routable: int) -> int:
    """Count the versions loaded at most: the routable ones, and one that drains."""
    return max_routable + 1


class LoadedVersions:
    """Versions in the order they were loaded; the last ``max_routable`` of them serve new calls.

    When an older version is loaded again, newer ones drain: no new call goes to them. The version loaded last stays
    even if it is revoked, until another is loaded or waits for capacity: the decision may be reversed.
    """

    def __init__(self, model: str, max_routable: int) -> None:
        self.model, self._max_routable = model, max_routable
        self._num_calls: dict[int, int] = {}
        self._draining: set[int] = set()
        """Replaced by an older version, or about to be unloaded: never routable."""
        self._is_blocked: Callable[[int], bool] = lambda version: False
        self._is_load_pending = False
        self.changed = asyncio.Event()
        """Set for a moment when a version is loaded, unloaded or blocked, or a call ends."""

    def name(self, version: int) -> str:
        """Name the model of a version inside vLLM."""
        return f"{self.model}@{version}"

    @property
    def routable(self) -> tuple[int, ...]:
        """Versions that serve new calls, newest last."""
        versions = (
            version for version in self._num_calls if version not in self._draining and not self._is_blocked(version)
        )
        return tuple(versions)[-self._max_routable :]

    @property
    def loaded(self) -> tuple[int, ...]:
        """All versions, newest last."""
        return tuple(self._num_calls)

    @property
    def has_capacity(self) -> bool:
        """Whether another version may be loaded."""
        return len(self._num_calls) < capacity(self._max_routable)

    def evictable(self) -> tuple[int, ...]:
        """List the versions to unload: not routable, without calls; the last one only if another waits for capacity."""
        needed = (
            self.routable if self._is_load_pending and not self.has_capacity else (*self.routable, *self.loaded[-1:])
        )
        return tuple(version for version, calls in self._num_calls.items() if not calls and version not in needed)

    def __contains__(self, version: int) -> bool:
        return version in self._num_calls

    def add(self, version: int) -> None:
        """Add a version that the engine has loaded as the newest."""
        if version not in self and not self.has_capacity:
            raise ValueError(f"version {version} does not fit beside {', '.join(map(str, self._num_calls))}")
        self._num_calls[version] = self._num_calls.pop(version, 0)
        self._draining = {other for other in self._num_calls if other > version or other in self._draining} - {version}
        self._notify()

    def block(self, is_blocked: Callable[[int], bool]) -> None:
        """Exclude from new calls exactly the versions of this predicate, loaded already or later."""
        self._is_blocked = is_blocked
        self._notify()

    @contextmanager
    def pending_load(self) -> Iterator[None]:
        """Register that another version waits for capacity, while the block runs."""
        self._is_load_pending = True
        self._notify()
        try:
            yield
        finally:
            self._is_load_pending = False

    def mark_draining(self, version: int) -> None:
        """Exclude it from new calls: it is about to be unloaded."""
        self._draining.add(version)

    def remove(self, version: int) -> None:
        """Remove a version that the engine has unloaded; raise `ValueError` while it serves a call."""
        if self._num_calls[version]:
            raise ValueError(f"version {version} serves {self._num_calls[version]} calls")
        del self._num_calls[version]
        self._draining.discard(version)
        self._notify()

    def clear(self) -> None:
        """Forget all versions, because a new engine has loaded none."""
        self._num_calls, self._draining = {}, set()
        self._notify()

    @contextmanager
    def track_call(self, version: int) -> Iterator[None]:
        """Count a call of this version while the block runs."""
        calls = self._num_calls  # `clear` replaces it: a call of the previous engine must not be counted down here
        calls[version] += 1
        try:
            yield
        finally:
            calls[version] -= 1
            self._notify()

    def _notify(self) -> None:
        self.changed.set()
        self.changed.clear()
