"""Choice of the rollouts that are audited, and of their span batches in transit. Pure; time is passed in."""

from collections import OrderedDict
from collections.abc import Iterable
from hashlib import blake2b

from lightningbus.schemas.spans import SpanBatch

MAX_PARTIAL = 1000
"""Attempts without an end so far; the oldest gives way."""
MAX_READ = 1000
"""Batches that are read for the first rollout of an engine and version; then it has to wait until it is drawn."""
Sampler = tuple[str, int]
"""An engine's id and a weight version."""


class Draw:
    """A fixed share of all rollouts, and the first of each engine and version.

    The key is secret, so nobody can know which rollouts will be audited.
    """

    def __init__(self, share: float, key: bytes) -> None:
        self._limit, self._key = round(share * 2**64), key
        self._wanted: set[Sampler] = set()
        self._num_to_read = 0
        self._met: set[Sampler] = set()
        self._partial: OrderedDict[str, dict[int, SpanBatch]] = OrderedDict()
        self.suspects: frozenset[str] = frozenset()
        """Engines of which every rollout is audited."""

    def expect(self, samplers: Iterable[Sampler]) -> None:
        """Audit each newly serving engine and version as soon as possible."""
        served = set(samplers)
        self._met &= served  # engines that no longer serve are forgotten
        wanted = served - self._met
        if wanted - self._wanted:
            self._num_to_read = MAX_READ
        self._wanted = wanted

    def is_drawn(self, execution_id: str) -> bool:
        """Return whether an attempt is in the share."""
        digest = blake2b(execution_id.encode(), key=self._key, digest_size=8).digest()
        return int.from_bytes(digest, "big") < self._limit

    def wants(self, execution_id: str) -> bool:
        """Return whether a batch of this attempt has to be read; otherwise its bytes need not be decoded."""
        is_looking = bool(self._wanted and self._num_to_read > 0) or bool(self.suspects)
        return is_looking or execution_id in self._partial or self.is_drawn(execution_id)

    def add(self, batch: SpanBatch) -> list[SpanBatch] | None:
        """Take a batch; all batches of an attempt that is to be audited, once its end has come."""
        self._num_to_read -= 1
        parts = self._partial.setdefault(batch.execution_id, {})
        parts[batch.sequence] = batch
        last = max(parts) if any(part.end is not None for part in parts.values()) else None
        if last is None or len(parts) <= last:
            if len(self._partial) > MAX_PARTIAL:
                self._partial.popitem(last=False)
            return None
        del self._partial[batch.execution_id]
        batches = [parts[number] for number in range(last + 1)]
        samplers = {
            (span.engine_id, span.version)
            for part in batches
            for record in part.spans
            if record.call is not None
            for span in record.call.weight_versions
        }
        is_first = not self._wanted.isdisjoint(samplers)
        self._wanted -= samplers
        self._met |= samplers
        is_suspect = any(engine_id in self.suspects for engine_id, _ in samplers)
        return batches if is_first or is_suspect or self.is_drawn(batch.execution_id) else None
