"""Handles one task from its delivery to its end: run, publish, then acknowledge, give back or dead-letter."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType

from nats.errors import Error as NatsError
from structlog.contextvars import bind_contextvars

from lightningbus.bus.client import Bus
from lightningbus.bus.dead_letters import DeadLetterQueue
from lightningbus.bus.dlq_limit import DlqLimit
from lightningbus.bus.errors import BusError, DlqLimitExceededError
from lightningbus.bus.jetstream.message import Message
from lightningbus.bus.lease import Lease, LeaseRenewer
from lightningbus.common.observability import metrics, tracing
from lightningbus.common.observability.faults import count_fault
from lightningbus.common.token_price import TokenPrice
from lightningbus.runners import retry_policy
from lightningbus.runners.agent.executors import AgentExecutor
from lightningbus.runners.concurrency.adaptation import RolloutTimer
from lightningbus.runners.recording.attempt import MAX_ERROR, AttemptRecorder
from lightningbus.runners.recording.sending import send
from lightningbus.runners.retry_policy import RetryDecision
from lightningbus.runners.rollout import ChoosePrompts, RolloutResult, run_agent
from lightningbus.runners.slots import SlotLease, Slots, SlotsClosedError
from lightningbus.schemas import subjects
from lightningbus.schemas.base import Mode, Outcome
from lightningbus.schemas.codec import DecodeError, EncodeError, decode
from lightningbus.schemas.semconv import attributes
from lightningbus.schemas.tasks import Task, TaskIdentity
from lightningbus.schemas.text import shorten
from lightningbus.tasks.task_publisher import TaskPublisher, build_foreign_record

log = logging.getLogger(__name__)

NAK_DELAY_SECONDS = 5.0
"""Seconds that a stopping runner spends on publishing a preemption; the task is given back in any case."""
UNREADABLE_DELAY_SECONDS = 5.0
RATE_WINDOW_SECONDS = 10.0
TRANSIENT_ERRORS = (BusError, NatsError)
"""Errors of the bus, after which a task is given back however often it was delivered."""
EXPECTED_ERRORS = (*TRANSIENT_ERRORS, EncodeError)
"""Errors of the bus or of the task itself; any other is a fault of the runner."""


class TaskHandler:
    """Handles the tasks of one runner; no error costs a slot or a task."""

    def __init__(
        self,
        bus: Bus,
        runner: str,
        ack_wait: float,
        slots: Slots,
        executors: Mapping[int, AgentExecutor],
        stop: Callable[[], None],
        choose_prompts: ChoosePrompts,
        is_graded: bool = False,
        timer: RolloutTimer | None = None,
        model_prices: Mapping[str, TokenPrice] = MappingProxyType({}),
    ) -> None:
        """Prepare; ``executors`` are by number of their slot, ``stop`` is called when most tasks are unreadable.

        ``is_graded``: graders on the bus give the rewards. ``timer`` times the rollouts.
        ``model_prices`` are those of models that no node answers, by pattern of their names.
        """
        self._timer, self._model_prices = timer or RolloutTimer(), model_prices
        self._bus, self._runner, self._ack_wait = bus, runner, ack_wait
        self._slots, self._executors, self._stop = slots, executors, stop
        self._choose_prompts, self._is_graded = choose_prompts, is_graded
        self._dlq_limit = DlqLimit(f"runner {runner}")
        self._completed_at: list[float] = []
        self.dlq_limit_error: DlqLimitExceededError | None = None
        """Reason why the runner has to end; None: there is none."""
        self.num_completed = 0
        self.num_nacked = 0
        self.problem = ""
        """The last error; empty again after a rollout that ends well."""

    @property
    def rate(self) -> float:
        """Rollouts done per second, lately."""
        now = time.monotonic()
        self._completed_at = [moment for moment in self._completed_at if now - moment < RATE_WINDOW_SECONDS]
        return len(self._completed_at) / RATE_WINDOW_SECONDS

    async def serve(self, mode: Mode, message: Message) -> None:
        """Serve one message of its mode's durable, to its end."""
        rollout = message.headers.get(subjects.MSG_ID_HEADER, message.subject)
        try:
            # Leased first: it may wait for a slot.
            async with LeaseRenewer(message, self._ack_wait) as lease, self._slots.lease(mode) as slot_lease:
                await self._process(slot_lease, message, lease)
        except SlotsClosedError:
            await self._nak(message, 0.0)
        except asyncio.CancelledError:
            await self._nak(message, 0.0)
            raise
        except Exception as error:  # any error: it costs neither the slot nor the task
            self.problem = shorten(str(error) or type(error).__name__, MAX_ERROR)
            log.warning("%s given back: %s", rollout, self.problem)
            if not isinstance(error, EXPECTED_ERRORS):
                count_fault(rollout, error)
            if isinstance(error, TRANSIENT_ERRORS) or not await self._is_given_up(message):
                await self._nak(message, retry_policy.RETRY_POLICY.delay_after(message.num_delivered))

    async def _is_given_up(self, message: Message) -> bool:
        """Make a dead letter of a task that fails its runner at every delivery; return whether it did."""
        if message.num_delivered < retry_policy.MAX_DELIVERIES:
            return False
        try:
            await DeadLetterQueue(self._bus).add(
                message, f"{message.num_delivered} times an error of the runner's own: {self.problem}"
            )
        except Exception as error:
            log.warning("%s could not become a dead letter: %s", message.subject, error)
            return False
        return True

    async def _nak(self, message: Message, delay: float) -> None:
        self.num_nacked += 1
        metrics.tasks_nacked.inc()
        try:
            await message.nak(delay)
        except Exception as error:  # cut off from the bus, say: its lease runs out
            log.warning("%s could not be given back: %s", message.subject, error)

    async def _process(self, slot_lease: SlotLease, message: Message, lease: Lease) -> None:
        try:
            task = message.decode_as(Task)
        except DecodeError as error:
            await self._reject_unreadable(slot_lease, message, str(error))
            return
        self._dlq_limit.record_valid()
        parent = message.headers.get(subjects.TRACE_HEADER, "")
        if foreign := build_foreign_record(task, message.subject, parent, message.timestamp_ns):
            await TaskPublisher(self._bus).record_tasks([foreign])
        number = task.prior_attempts + message.num_delivered
        recorder = AttemptRecorder(
            task,
            number,
            self._runner,
            message.timestamp_ns,
            is_graded=self._is_graded,
            model_prices=self._model_prices,
        )
        bind_contextvars(run=task.run_id, rollout=recorder.rollout)
        reason = retry_policy.find_problem(task)
        if not reason and retry_policy.is_exhausted(task, message.num_delivered):
            reason = f"{task.max_attempts} runners took this task and none of them lived to say what came of it"
        if reason:
            await self._report_poisoned(slot_lease, recorder, reason)
            await DeadLetterQueue(self._bus).add(message, f"poison: {reason}")
            return
        span_attributes: tracing.Attributes = {
            attributes.RUN: task.run_id,
            attributes.ROLLOUT: recorder.rollout,
            attributes.ATTEMPT: recorder.number,
        }
        with tracing.start_as_current_span(f"attempt {task.agent}", span_attributes, parent, "consumer") as span:
            recorder.traceparent = tracing.format_traceparent(span)
            outcome = await self._run(slot_lease, message, lease, task, recorder)
            span.set_attributes({attributes.OUTCOME: outcome})
            if outcome != "ok":
                tracing.set_error(span, outcome)

    async def _run(
        self, slot_lease: SlotLease, message: Message, lease: Lease, task: Task, recorder: AttemptRecorder
    ) -> Outcome:
        try:
            executor = self._executors[slot_lease.slot.number]
            with self._timer.rollout() as set_outcome:
                end = await run_agent(executor, slot_lease.slot, task, recorder, self._choose_prompts)
                set_outcome(end.outcome)
        except asyncio.CancelledError:
            recorder.finish("preempted", None, f"runner {self._runner} was stopped", "", final=False)
            with contextlib.suppress(BusError, NatsError, TimeoutError):
                async with asyncio.timeout(NAK_DELAY_SECONDS):
                    await send(self._bus, recorder, NAK_DELAY_SECONDS)
            raise
        slot_lease.release(task.mode)
        if not lease.is_held(asyncio.get_running_loop().time()):
            log.warning("rollout %s: its lease ran out, so another runner may have it too", recorder.rollout)
        with tracing.start_as_current_span("publish"):
            await self._finish(
                recorder, message, retry_policy.decide_next_action(task, message.num_delivered, end.outcome), end
            )
        return end.outcome

    async def _reject_unreadable(self, slot_lease: SlotLease, message: Message, reason: str) -> None:
        """Dead-letter a task that cannot be decoded, and end its rollout if at least its ids can be read."""
        try:
            self._dlq_limit.record_invalid(reason)
        except DlqLimitExceededError as error:
            self.dlq_limit_error = error
            self._stop()
            await self._nak(message, UNREADABLE_DELAY_SECONDS)
            return
        with contextlib.suppress(DecodeError):
            identity = decode(TaskIdentity, message.data)
            recorder = AttemptRecorder(
                identity, message.num_delivered, self._runner, message.timestamp_ns, is_graded=self._is_graded
            )
            await self._report_poisoned(slot_lease, recorder, reason)
        await DeadLetterQueue(self._bus).add(message, reason)

    async def _report_poisoned(self, slot_lease: SlotLease, recorder: AttemptRecorder, reason: str) -> None:
        slot_lease.release(recorder.task.mode)
        recorder.finish("poison", None, reason, "")
        await send(self._bus, recorder)

    async def _finish(
        self, recorder: AttemptRecorder, message: Message, decision: RetryDecision, end: RolloutResult
    ) -> None:
        """Publish how an attempt ended, then settle its task accordingly."""
        if end.outcome != "ok":
            self.problem = end.error
            values = (recorder.rollout, recorder.number, end.outcome, end.error)
            log.warning("rollout %s attempt %d: %s: %s", *values)
        final = decision.retry_after is None
        recorder.finish(end.outcome, end.reward, end.error, end.result, final, end.reward_span, end.rewards)
        await send(self._bus, recorder)
        if decision.retry_after is not None:
            await message.nak(delay=decision.retry_after)
            return
        if decision.dead_letter:
            await DeadLetterQueue(self._bus).add(message, f"{end.outcome}: {end.error}")
        else:
            await message.ack()
        if end.outcome == "ok":
            self.problem = ""
        self.num_completed += 1
        self._completed_at.append(time.monotonic())
