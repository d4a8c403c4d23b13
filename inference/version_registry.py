"""Which versions an engine holds beside one another, how many calls each answers, and when one may go. Pure."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager


def select_version(open_to: Sequence[int], pinned: str | None, preferred: str | None) -> int | None:
    """The version that answers a call, of those open to new ones, newest last; None: it is refused.

    Pinned means this one or none, preferred this one or the newest; both as the call's headers say them.
    """
    wanted = preferred if pinned is None else pinned
    found = [version for version in open_to if str(version) == wanted]
    if found or pinned is not None:
        return found[0] if found else None
    return open_to[-1] if open_to else None


def capacity(kept: int) -> int:
    """How many versions there are at most: those kept for new calls, and one whose calls have to end."""
    return kept + 1


class LoadedVersions:
    """Versions in the order they came; new calls go to the ``kept`` that came last.

    Where an older one comes again, those that were newer are taken back: no new call goes to them. What came last
    stays whatever is decided of it, until another has come or waits for its place: the decision may not last.
    """

    def __init__(self, model: str, kept: int) -> None:
        self.model, self._kept = model, kept
        self._calls: dict[int, int] = {}
        self._draining: set[int] = set()
        """Taken back, or about to go: open to no new call, whatever is decided."""
        self._closed: Callable[[int], bool] = lambda version: False
        self._waiting = False
        self.changed = asyncio.Event()
        """Set for a moment when a version comes or goes, or a call to one ends."""

    def name(self, version: int) -> str:
        """What a version is called inside vLLM."""
        return f"{self.model}@{version}"

    @property
    def routable(self) -> tuple[int, ...]:
        """Versions new calls may go to, newest last."""
        found = (version for version in self._calls if version not in self._draining and not self._closed(version))
        return tuple(found)[-self._kept :]

    @property
    def loaded(self) -> tuple[int, ...]:
        """All of them, newest last."""
        return tuple(self._calls)

    @property
    def has_capacity(self) -> bool:
        """Whether another version may come."""
        return len(self._calls) < capacity(self._kept)

    def evictable(self) -> tuple[int, ...]:
        """What is to go: neither open to new calls nor in use; what came last only for another that waits."""
        stay = self.routable if self._waiting and not self.has_capacity else (*self.routable, *self.loaded[-1:])
        return tuple(version for version, calls in self._calls.items() if not calls and version not in stay)

    def __contains__(self, version: int) -> bool:
        return version in self._calls

    def add(self, version: int) -> None:
        """The engine holds it from now on: it is the newest."""
        if version not in self and not self.has_capacity:
            raise ValueError(f"version {version} has no place beside {', '.join(map(str, self._calls))}")
        self._calls[version] = self._calls.pop(version, 0)
        self._draining = {other for other in self._calls if other > version or other in self._draining} - {version}
        self._notify()

    def block(self, closed: Callable[[int], bool]) -> None:
        """These, and no others, are open to no new call from now on, whatever came when or is yet to come."""
        self._closed = closed
        self._notify()

    @contextmanager
    def pending_load(self) -> Iterator[None]:
        """A time in which another version waits for a place."""
        self._waiting = True
        self._notify()
        try:
            yield
        finally:
            self._waiting = False

    def mark_draining(self, version: int) -> None:
        """It is about to go: the engine is being told."""
        self._draining.add(version)

    def remove(self, version: int) -> None:
        """The engine holds it no more; never while it answers a call."""
        if self._calls[version]:
            raise ValueError(f"version {version} answers {self._calls[version]} calls")
        del self._calls[version]
        self._draining.discard(version)
        self._notify()

    def clear(self) -> None:
        """The engine holds nothing, whatever calls there were."""
        self._calls, self._draining = {}, set()
        self._notify()

    @contextmanager
    def track_call(self, version: int) -> Iterator[None]:
        """A call that this version answers, from its beginning to its end."""
        calls = self._calls  # those of another engine end elsewhere
        calls[version] += 1
        try:
            yield
        finally:
            calls[version] -= 1
            self._notify()

    def _notify(self) -> None:
        self.changed.set()
        self.changed.clear()
