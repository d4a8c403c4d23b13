"""Room for more rollouts, and signs of too many: memory of the machine, and nodes that calls queue at. Pure."""

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean

from lightningbus.bus.fleet.node_state import is_ready
from lightningbus.schemas.fleet import Heartbeat

MEMORY_FULL = 0.03
"""Free share of the memory below which slots are taken."""
MEMORY_RESERVE = 0.1
"""Free share of the memory that further slots leave."""
MIN_SLOT_BYTES = 128 * 2**20
"""Memory that a further slot is expected to take, at least."""
SLOT_MARGIN = 1.5
"""Memory that a further slot is expected to take, as a multiple of what one takes now."""
NODES_FULL = 1.25
"""Calls at the nodes, as a multiple of those that they compute at once, beyond which slots are taken."""
NUM_SAMPLES = 10
"""Samples, a second apart, that must all show full nodes: a short queue keeps them at work."""
NO_MEMORY, FULL_NODES = "memory is short", "calls queue at the nodes"


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of the machine or the control group."""

    available_bytes: int
    total_bytes: int

    @property
    def is_full(self) -> bool:
        """Whether so little is left that the machine may fail."""
        return self.available_bytes < MEMORY_FULL * self.total_bytes

    def count_more(self, bytes_per_slot: float) -> int:
        """Count the slots that it has room for, where one takes so much on average."""
        expected_bytes = max(MIN_SLOT_BYTES, SLOT_MARGIN * bytes_per_slot)
        return max(0, int((self.available_bytes - MEMORY_RESERVE * self.total_bytes) // expected_bytes))


@dataclass(frozen=True, slots=True)
class NodeLoad:
    """Calls at the nodes of one model, and how many of them are computed at once."""

    num_calls: int
    num_seats: int

    @property
    def ratio(self) -> float:
        """Calls for each seat."""
        return self.num_calls / self.num_seats


def find_fullest(nodes: Iterable[Heartbeat], node_ids: Collection[str]) -> NodeLoad | None:
    """Return the load of the model whose nodes are fullest, among the ready ones of ``node_ids``; None: not known."""
    ready = [node for node in nodes if node.id in node_ids and is_ready(node.state) and _count(node, "max_num_seqs")]
    by_model = groupby(sorted(ready, key=lambda node: node.model), key=lambda node: node.model)
    loads = []
    for _, group in by_model:
        members = list(group)
        num_calls = sum(_count(node, "inflight") for node in members)
        loads.append(NodeLoad(num_calls, sum(_count(node, "max_num_seqs") for node in members)))
    return max(loads, key=lambda load: load.ratio, default=None)


class Pressure:
    """The last samples of memory and nodes."""

    def __init__(self) -> None:
        self._memory: Memory | None = None
        self._ratios: deque[float] = deque(maxlen=NUM_SAMPLES)
        self._num_seats = 0

    def add(self, memory: Memory | None, load: NodeLoad | None) -> None:
        """Add a sample, a second after the last one; None: not known."""
        self._memory = memory
        if load is None:
            self.clear_nodes()
        else:
            self._ratios.append(load.ratio)
            self._num_seats = load.num_seats

    def clear_nodes(self) -> None:
        """Forget the nodes' samples, which were taken with more slots."""
        self._ratios.clear()

    @property
    def sign(self) -> str:
        """The sign of too many rollouts, in a few words; empty if there is none."""
        if self._memory is not None and self._memory.is_full:
            return NO_MEMORY
        if len(self._ratios) == NUM_SAMPLES and min(self._ratios) > NODES_FULL:
            return FULL_NODES
        return ""

    def find_room(self, max_slots: int, bytes_per_slot: float = 0.0) -> tuple[int, str]:
        """Return how many slots may be added, at most ``max_slots``, and what allows no more."""
        rooms = [(max_slots, "")]
        if self._memory is not None:
            rooms.append((self._memory.count_more(bytes_per_slot), NO_MEMORY))
        if self._ratios:
            rooms.append((max(0, round(self._num_seats * (1 - fmean(self._ratios)))), FULL_NODES))
        return min(rooms, key=lambda room: room[0])


def _count(node: Heartbeat, name: str) -> int:
    value = node.status.get(name)
    return value if isinstance(value, int) else 0
