"""Recovery of tasks that the bus lost: they are dispatched again, and reported by log, alert and next step."""

import logging

from nats.errors import Error as NatsError

from lightningbus.alerts.publisher import AlertPublisher, Reason
from lightningbus.alerts.table import describe
from lightningbus.bus.client import Bus
from lightningbus.bus.errors import BusError
from lightningbus.common.observability import metrics
from lightningbus.learner.dispatch.dispatcher import Dispatcher
from lightningbus.learner.rollouts.consumer import RolloutConsumer
from lightningbus.learner.rollouts.stream_position import StreamMark

log = logging.getLogger(__name__)


class LossRecovery:
    """Works on the gaps that the intake finds."""

    def __init__(self, bus: Bus, consumer: RolloutConsumer, dispatcher: Dispatcher) -> None:
        self._consumer, self._dispatcher = consumer, dispatcher
        self._gaps = self._tasks = 0
        self._alerts = AlertPublisher(bus, "loss")
        self._reasons: dict[str, Reason] = {}
        """Losses since the last training step, by the nonce of their gap."""

    async def run(self) -> None:
        """Recover losses for ever."""
        while True:
            gap = await self._consumer.gaps.get()
            groups = self._consumer.groups
            if gap.is_cut and self._dispatcher.num_by_others:
                num_groups = self._dispatcher.leave_to_others()
                log.error("this learner was behind: %s; it leaves %d groups to other learners", gap.reason, num_groups)
                continue
            tasks = self._dispatcher.dispatch_again(groups.ended_rollouts(), gap.nonce)
            self._gaps += 1
            self._tasks += tasks
            metrics.bus_gaps.inc()
            reason = Reason("learner", describe("messages_lost", reason=gap.reason, tasks=tasks))
            log.error("%s", reason.sentence)
            self._reasons[str(gap.nonce)] = reason
            await self._publish()

    @property
    def mark(self) -> StreamMark:
        """The stream for a checkpoint: as it was before a loss, until all tasks that were lost are on the bus again."""
        is_done = self._consumer.gap is None and self._consumer.gaps.empty() and not self._dispatcher.is_behind
        return self._consumer.stream_mark if is_done else self._consumer.previous_stream_mark

    def status(self) -> dict[str, float]:
        """Report the losses since the last training step, for its record; empty without any."""
        gaps, tasks, self._gaps, self._tasks = self._gaps, self._tasks, 0, 0
        return {"bus/gaps": gaps, "bus/tasks_dispatched_again": tasks} if gaps else {}

    async def resolve(self) -> None:
        """Resolve the alerts after a training step."""
        self._reasons.clear()
        await self._publish()

    async def _publish(self) -> None:
        try:
            await self._alerts.update(self._reasons)
        except (BusError, NatsError) as error:  # the log has it
            log.warning("the alert is not published: %s", error)
