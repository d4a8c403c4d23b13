"""Decision whether requests in flight keep their KV cache across a swap. Pure."""

import math

from lightningbus.common.role_settings import KvCachePolicy
from lightningbus.schemas.weights.events import KvCacheOutcome


class KvCacheChoice:
    """Decides at each swap: ``auto`` keeps the cache while the weights have moved little since it was computed.

    The changes of all swaps since the last recomputation are added up. If the sum exceeds ``max_change``, the cache is
    recomputed.
    """

    def __init__(self, policy: KvCachePolicy, max_change: float) -> None:
        self._policy, self._max_change = policy, max_change
        self._kept_change = 0.0

    def record_swap(self, change: float | None) -> KvCacheOutcome:
        """Decide about the cache in a swap that changes the weights by ``change``, relatively; None: unknown."""
        if self._policy != "auto":
            return "kept" if self._policy == "keep" else "recomputed"
        self._kept_change += math.inf if change is None else change
        if self._kept_change <= self._max_change:
            return "kept"
        self._kept_change = 0.0
        return "recomputed"
