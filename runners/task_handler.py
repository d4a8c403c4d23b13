"""One task from its delivery to its end: run, published, and acknowledged, given back or buried."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping

from nats.errors import Error as NatsError

from bus.client import Bus
from bus.dead_letters import DeadLetterQueue
from bus.dlq_limit import DlqLimit
from bus.errors import BusError, DlqLimitExceededError
from bus.lease import Lease, keep_renewed
from bus.message import Message
from bus.task_publisher import TaskPublisher, build_foreign_record
from common.observability import metrics, tracing
from common.observability.faults import count_fault
from runners import retry_policy
from runners.agent.executors import AgentExecutor
from runners.recording.attempt import MAX_ERROR, AttemptRecorder
from runners.recording.sending import send
from runners.retry_policy import RetryDecision
from runners.rollout import RolloutResult, run_agent
from runners.slots import Slots, Stay, Stopping
from schemas import subjects
from schemas.base import Mode, Outcome
from schemas.codec import DecodeError, EncodeError, decode
from schemas.semconv import attributes
from schemas.tasks import Task, TaskIdentity
from schemas.text import shorten

log = logging.getLogger(__name__)

GIVE_BACK_SECONDS = 5.0
"""How long a stopping runner tries to say that a rollout was preempted; its task is given back in any case."""
UNREADABLE_SECONDS = 5.0
RATE_SECONDS = 10.0
TRANSIENT = (BusError, NatsError)
"""Errors of the bus, after which a task is given back however often it was delivered."""
FORESEEN = (*TRANSIENT, EncodeError)
"""Errors that are nobody's fault here, or the task's own; any other is a fault of the runner's."""


class TaskHandler:
    """Handles the tasks of one runner; whatever goes wrong costs neither a slot nor a task."""

    def __init__(
        self,
        bus: Bus,
        runner: str,
        ack_wait: float,
        slots: Slots,
        hosts: Mapping[int, AgentExecutor],
        stop: Callable[[], None],
    ) -> None:
        """``hosts`` by number of their slot; ``stop`` is called when most tasks are unreadable, see `flood`."""
        self._bus, self._runner, self._ack_wait = bus, runner, ack_wait
        self._slots, self._hosts, self._stop = slots, hosts, stop
        self._poison = DlqLimit(f"runner {runner}")
        self._ended_at: list[float] = []
        self.flood: DlqLimitExceededError | None = None
        """Why the runner has to end; None: it has not."""
        self.done = 0
        self.given_back = 0
        self.problem = ""
        """What went wrong last."""

    @property
    def rate(self) -> float:
        """Rollouts done per second, lately."""
        now = time.monotonic()
        self._ended_at = [moment for moment in self._ended_at if now - moment < RATE_SECONDS]
        return len(self._ended_at) / RATE_SECONDS

    async def serve(self, mode: Mode, delivery: Message) -> None:
        """One delivery, by its mode's durable, to its end."""
        rollout = delivery.headers.get(subjects.MSG_ID_HEADER, delivery.subject)
        try:
            # Leased first: it may wait for a slot.
            async with keep_renewed(delivery, self._ack_wait) as lease, self._slots.taken(mode) as stay:
                await self._take(stay, delivery, lease)
        except Stopping:
            await self._give_back(delivery, 0.0)
        except asyncio.CancelledError:
            await self._give_back(delivery, 0.0)
            raise
        except Exception as error:  # whatever it is, it costs neither the slot nor the task
            self.problem = shorten(str(error) or type(error).__name__, MAX_ERROR)
            log.warning("%s given back: %s", rollout, self.problem)
            if not isinstance(error, FORESEEN):
                count_fault(rollout, error)
            if isinstance(error, TRANSIENT) or not await self._is_given_up(delivery):
                await self._give_back(delivery, retry_policy.retry_after(delivery.num_delivered))

    async def _is_given_up(self, delivery: Message) -> bool:
        """Whether a task that fails its runner at every delivery has become a dead letter."""
        if delivery.num_delivered < retry_policy.MOST_DELIVERIES:
            return False
        try:
            await DeadLetterQueue(self._bus).add(
                delivery, f"{delivery.num_delivered} times an error of the runner's own: {self.problem}"
            )
        except Exception as error:
            log.warning("%s could not be buried: %s", delivery.subject, error)
            return False
        return True

    async def _give_back(self, delivery: Message, delay: float) -> None:
        self.given_back += 1
        metrics.tasks_nacked.inc()
        try:
            await delivery.nak(delay)
        except Exception as error:  # cut off from the bus, say: its lease runs out
            log.warning("%s could not be given back: %s", delivery.subject, error)

    async def _take(self, stay: Stay, delivery: Message, lease: Lease) -> None:
        try:
            task = delivery.decode_as(Task)
        except DecodeError as error:
            await self._refuse(stay, delivery, str(error))
            return
        self._poison.record_valid()
        parent = delivery.headers.get(subjects.TRACE_HEADER, "")
        if foreign := build_foreign_record(task, delivery.subject, parent, delivery.timestamp_ns):
            await TaskPublisher(self._bus).record_tasks([foreign])
        attempt = AttemptRecorder(
            task, task.prior_attempts + delivery.num_delivered, self._runner, delivery.timestamp_ns
        )
        reason = retry_policy.unusable(task)
        if not reason and retry_policy.exhausted(task, delivery.num_delivered):
            reason = f"{task.max_attempts} runners took this task and none of them lived to say what came of it"
        if reason:
            await self._report_poisoned(stay, attempt, reason)
            await DeadLetterQueue(self._bus).add(delivery, f"poison: {reason}")
            return
        span_attributes: tracing.Attributes = {
            attributes.RUN: task.run_id,
            attributes.ROLLOUT: attempt.rollout,
            attributes.ATTEMPT: attempt.number,
        }
        with tracing.start_as_current_span(f"attempt {task.agent}", span_attributes, parent, "consumer") as traced:
            attempt.traceparent = traced.traceparent
            outcome = await self._run(stay, delivery, lease, task, attempt)
            traced.set_attributes({attributes.OUTCOME: outcome})
            if outcome != "ok":
                traced.set_error(outcome)

    async def _run(self, stay: Stay, delivery: Message, lease: Lease, task: Task, attempt: AttemptRecorder) -> Outcome:
        try:
            end = await run_agent(self._hosts[stay.slot.number], stay.slot, task, attempt)
        except asyncio.CancelledError:
            attempt.finish("preempted", None, f"runner {self._runner} was stopped", "", final=False)
            with contextlib.suppress(BusError, NatsError, TimeoutError):
                async with asyncio.timeout(GIVE_BACK_SECONDS):
                    await send(self._bus, attempt, GIVE_BACK_SECONDS)
            raise
        stay.leave(task.mode)
        if not lease.is_held(asyncio.get_running_loop().time()):
            log.warning(
                "rollout %s: its lease ran out, so another runner may have it too", attempt.rollout, extra=attempt.named
            )
        with tracing.start_as_current_span("publish"):
            await self._conclude(
                attempt, delivery, retry_policy.decide_next_action(task, delivery.num_delivered, end.outcome), end
            )
        return end.outcome

    async def _refuse(self, stay: Stay, delivery: Message, reason: str) -> None:
        """A task nobody can read: a dead letter, and the last word on its rollout if at least that can be read."""
        try:
            self._poison.record_invalid(reason)
        except DlqLimitExceededError as flood:
            self.flood = flood
            self._stop()
            await self._give_back(delivery, UNREADABLE_SECONDS)
            return
        with contextlib.suppress(DecodeError):
            attempt = AttemptRecorder(
                decode(TaskIdentity, delivery.data), delivery.num_delivered, self._runner, delivery.timestamp_ns
            )
            await self._report_poisoned(stay, attempt, reason)
        await DeadLetterQueue(self._bus).add(delivery, reason)

    async def _report_poisoned(self, stay: Stay, attempt: AttemptRecorder, reason: str) -> None:
        stay.leave(attempt.task.mode)
        attempt.finish("poison", None, reason, "")
        await send(self._bus, attempt)

    async def _conclude(
        self, attempt: AttemptRecorder, delivery: Message, decision: RetryDecision, end: RolloutResult
    ) -> None:
        """Publish how an attempt ended, then settle its task accordingly."""
        if end.outcome != "ok":
            self.problem = end.error
            values = (attempt.rollout, attempt.number, end.outcome, end.error)
            log.warning("rollout %s attempt %d: %s: %s", *values, extra=attempt.named)
        final = decision.retry_after is None
        attempt.finish(end.outcome, end.reward, end.error, end.result, final, end.reward_span)
        await send(self._bus, attempt)
        if decision.retry_after is not None:
            await delivery.nak(delay=decision.retry_after)
            return
        if decision.dead:
            await DeadLetterQueue(self._bus).add(delivery, f"{end.outcome}: {end.error}")
        else:
            await delivery.ack()
        self.done += 1
        self._ended_at.append(time.monotonic())
