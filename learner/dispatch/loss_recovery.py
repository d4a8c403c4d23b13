"""Recovery of tasks that the bus lost: they are dispatched again, and reported by log, alert and next step."""

import logging
import time

from nats.errors import Error as NatsError

from lightningbus.bus.client import Bus
from lightningbus.bus.errors import BusError
from lightningbus.common.observability import metrics
from lightningbus.learner.dispatch.dispatcher import Dispatcher
from lightningbus.learner.rollouts.consumer import RolloutConsumer
from lightningbus.learner.rollouts.stream_position import StreamMark
from lightningbus.schemas import subjects
from lightningbus.schemas.fleet import Alert

log = logging.getLogger(__name__)


class LossRecovery:
    """Works on the gaps that the intake finds."""

    def __init__(self, bus: Bus, consumer: RolloutConsumer, dispatcher: Dispatcher) -> None:
        self._bus, self._consumer, self._dispatcher = bus, consumer, dispatcher
        self._gaps = self._tasks = 0
        self._alert: Alert | None = None

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
            reason = f"the bus lost messages: {gap.reason}; {tasks} tasks are dispatched again"
            log.error("%s", reason)
            self._alert = Alert(role="learner", reason=reason, fired_at_ns=time.time_ns())
            await self._publish(self._alert)

    @property
    def mark(self) -> StreamMark:
        """The stream for a checkpoint: as it was before a loss, until the tasks are on the bus again."""
        is_done = self._consumer.gap is None and self._consumer.gaps.empty() and not self._dispatcher.is_behind
        return self._consumer.stream_mark if is_done else self._consumer.previous_stream_mark

    def status(self) -> dict[str, float]:
        """Report the losses since the last training step, for its record; empty without any."""
        gaps, tasks, self._gaps, self._tasks = self._gaps, self._tasks, 0, 0
        return {"bus/gaps": gaps, "bus/tasks_dispatched_again": tasks} if gaps else {}

    async def resolve(self) -> None:
        """Resolve the alert after a training step."""
        alert, self._alert = self._alert, None
        if alert is not None:
            await self._publish(Alert(role=alert.role, reason=alert.reason, resolved=True, fired_at_ns=time.time_ns()))

    async def _publish(self, alert: Alert) -> None:
        msg_id = f"alert:{alert.role}:{alert.fired_at_ns}"
        try:
            await self._bus.publish(subjects.ALERT, alert, msg_id=msg_id)
        except (BusError, NatsError) as error:  # the log has it
            log.warning("the alert is not published: %s", error)
