"""Keeps a slow or dead learner from blocking others: where it fills the stream, it misses the oldest rollouts."""

import asyncio
import logging
from collections.abc import Mapping

from nats.errors import Error as NatsError
from nats.js.errors import NotFoundError

from lightningbus.alerts.table import FULL, describe
from lightningbus.bus.client import Bus
from lightningbus.bus.errors import BusError
from lightningbus.bus.streams.specs import StreamState, learner_consumer
from lightningbus.common.observability import metrics
from lightningbus.schemas import subjects

log = logging.getLogger(__name__)

CHECK_SECONDS = 2.0
KEPT = 0.25
"""Share of the stream's messages, the newest, that stays for a learner that is behind."""


class RolloutRetention:
    """Watches the learners' durables if several learners read the rollouts."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def run(self) -> None:
        """Check for ever."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            try:
                await self._check()
            except (NatsError, BusError) as error:
                log.debug("the learners' backlogs are unknown: %s", str(error) or type(error).__name__)

    async def _check(self) -> None:
        names = filter(subjects.is_learner_durable, await self._bus.consumer_names(subjects.TRAIN_ROLLOUTS))
        models = [subjects.model_of_durable(name) for name in names]
        if len(models) < 2:
            return
        stream = await self._bus.stream_state(subjects.TRAIN_ROLLOUTS)
        if find_fill(stream) < FULL:
            return
        waiting: dict[str, int] = {}
        for model in models:
            try:
                backlog = await self._bus.backlog(learner_consumer(model))
            except NotFoundError:
                continue
            waiting[model] = backlog.num_unacknowledged
        for model in find_laggards(stream.num_messages, waiting):
            sequence = stream.last_seq + 1 - int(KEPT * stream.num_messages)
            await self._bus.reset_consumer(learner_consumer(model), sequence)
            passed = waiting[model] - int(KEPT * stream.num_messages)
            metrics.rollout_messages_passed.labels(model).inc(passed)
            values = {"stream": stream.name, "model": model, "num_messages": passed}
            log.error("%s", describe("learner_passed_by", **values))


def find_fill(stream: StreamState) -> float:
    """Return the used share of a stream's bounds, from 0 to 1."""
    bounds = ((stream.num_bytes, stream.max_bytes), (stream.num_messages, stream.max_messages))
    return max(used / bound if bound > 0 else 0.0 for used, bound in bounds)


def find_laggards(num_messages: int, waiting: Mapping[str, int]) -> list[str]:
    """Return the models whose learners have not acknowledged more than half of a stream, if another learner keeps up.

    ``waiting``: messages not acknowledged, by model. If no learner keeps up, nothing is skipped: the stream's limit is
    the backpressure then.
    """
    behind = [model for model, count in waiting.items() if count > num_messages / 2]
    return sorted(behind) if len(behind) < len(waiting) else []
