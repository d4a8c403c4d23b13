"""Tasks that the bus lost, in the order in which they are published once more. Pure."""

from collections import deque
from collections.abc import Collection, Iterable, Mapping


class LostTasks:
    """Samples by task, each with the nonce of its loss: the broker may still know the message ids of what it lost."""

    def __init__(self) -> None:
        self._tasks: deque[tuple[str, Collection[int], str]] = deque()
        self.nonce = ""
        """Nonce of the last loss; empty: nothing was lost yet."""
        self.later: frozenset[str] = frozenset()
        """Tasks that are published once the staleness bound admits them."""

    def __len__(self) -> int:
        return len(self._tasks)

    def add(self, samples: Mapping[str, Collection[int]], nonce: str, later: Iterable[str] = ()) -> None:
        """Take samples by task; tasks of ``later`` wait for the staleness bound."""
        self.nonce = nonce
        self.later |= frozenset(later)
        self._tasks.extend((task, numbers, nonce) for task, numbers in samples.items())

    @property
    def first(self) -> tuple[str, Collection[int], str]:
        """The task that is next, its samples, and the nonce of the loss."""
        return self._tasks[0]

    def remove_first(self) -> None:
        """Remove the first task, which is on the bus again."""
        self._tasks.popleft()
