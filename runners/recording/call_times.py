"""Times of model calls, to find one within the time of a span. Pure."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from itertools import accumulate


class CallTimes:
    """Begin and end of calls, by the name of their model."""

    def __init__(self, calls: Iterable[tuple[str, int, int]]) -> None:
        """Index calls: the name of each one's model, and its begin and end in nanoseconds."""
        by_name: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for name, start_ns, end_ns in calls:
            by_name[name].append((start_ns, end_ns))
        self._starts: dict[str, list[int]] = {}
        self._earliest_ends: dict[str, list[int]] = {}  # of all calls that begin no earlier
        for name, times in by_name.items():
            times.sort()
            self._starts[name] = [start_ns for start_ns, _ in times]
            self._earliest_ends[name] = [*accumulate((end_ns for _, end_ns in reversed(times)), min)][::-1]

    def has_call(self, name: str, start_ns: int, end_ns: int) -> bool:
        """Return whether a call of a model began and ended between two times."""
        first = bisect_left(self._starts.get(name, ()), start_ns)
        ends = self._earliest_ends.get(name, ())
        return first < len(ends) and ends[first] <= end_ns
