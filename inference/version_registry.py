"""Which versions an engine holds beside one another, how many calls each answers, and when one may go. Pure."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager


def chosen(open_to: Sequence[int], pinned: str | None, preferred: str | None) -> int | None:
    """The version that answers a call, of those open to new ones, newest last; None: it is refused.

    Pinned means this one or none, preferred this one or the newest; both as the call's headers say them.
    """
    wanted = preferred if pinned is None else pinned
    found = [version for version in open_to if str(version) == wanted]
    if found or pinned is not None:
        return found[0] if found else None
    return open_to[-1] if open_to else None


def places(kept: int) -> int:
    """How many versions there are at most: those kept for new calls, and one whose calls have to end."""
    return kept + 1


class Residents:
    """Versions in the order they came; new calls go to the ``kept`` that came last.

    Where an older one comes again, those that were newer are taken back: no new call goes to them. What came last
    stays whatever is decided of it, until another has come or waits for its place: the decision may not last.
    """

    def __init__(self, model: str, kept: int) -> None:
        self.model, self._kept = model, kept
        self._calls: dict[int, int] = {}
        self._past: set[int] = set()
        """Taken back, or about to go: open to no new call, whatever is decided."""
        self._closed: Callable[[int], bool] = lambda version: False
        self._waiting = False
        self.changed = asyncio.Event()
        """Set for a moment when a version comes or goes, or a call to one ends."""

    def name(self, version: int) -> str:
        """What a version is called inside vLLM."""
        return f"{self.model}@{version}"

    @property
    def open(self) -> tuple[int, ...]:
        """Versions new calls may go to, newest last."""
        found = (version for version in self._calls if version not in self._past and not self._closed(version))
        return tuple(found)[-self._kept :]

    @property
    def held(self) -> tuple[int, ...]:
        """All of them, newest last."""
        return tuple(self._calls)

    @property
    def room(self) -> bool:
        """Whether another version may come."""
        return len(self._calls) < places(self._kept)

    def due(self) -> tuple[int, ...]:
        """What is to go: neither open to new calls nor in use; what came last only for another that waits."""
        stay = self.open if self._waiting and not self.room else (*self.open, *self.held[-1:])
        return tuple(version for version, calls in self._calls.items() if not calls and version not in stay)

    def __contains__(self, version: int) -> bool:
        return version in self._calls

    def add(self, version: int) -> None:
        """The engine holds it from now on: it is the newest."""
        if version not in self and not self.room:
            raise ValueError(f"version {version} has no place beside {', '.join(map(str, self._calls))}")
        self._calls[version] = self._calls.pop(version, 0)
        self._past = {other for other in self._calls if other > version or other in self._past} - {version}
        self._say()

    def close(self, closed: Callable[[int], bool]) -> None:
        """These, and no others, are open to no new call from now on, whatever came when or is yet to come."""
        self._closed = closed
        self._say()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A time in which another version waits for a place."""
        self._waiting = True
        self._say()
        try:
            yield
        finally:
            self._waiting = False

    def leave(self, version: int) -> None:
        """It is about to go: the engine is being told."""
        self._past.add(version)

    def remove(self, version: int) -> None:
        """The engine holds it no more; never while it answers a call."""
        if self._calls[version]:
            raise ValueError(f"version {version} answers {self._calls[version]} calls")
        del self._calls[version]
        self._past.discard(version)
        self._say()

    def clear(self) -> None:
        """The engine holds nothing, whatever calls there were."""
        self._calls, self._past = {}, set()
        self._say()

    @contextmanager
    def call(self, version: int) -> Iterator[None]:
        """A call that this version answers, from its beginning to its end."""
        calls = self._calls  # those of another engine end elsewhere
        calls[version] += 1
        try:
            yield
        finally:
            calls[version] -= 1
            self._say()

    def _say(self) -> None:
        self.changed.set()
        self.changed.clear()
