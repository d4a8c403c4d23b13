"""The grader process: takes finished attempts off the bus, grades them, and publishes their ends."""

import asyncio
import logging
import math
from contextlib import suppress
from typing import Any

from msgspec.structs import replace
from nats.errors import Error as NatsError

from lightningbus.bus.client import Bus
from lightningbus.bus.dead_letters import DeadLetterQueue
from lightningbus.bus.dlq_limit import DlqLimit
from lightningbus.bus.errors import BusError, DlqLimitExceededError
from lightningbus.bus.fleet.heartbeats import default_instance_id
from lightningbus.bus.jetstream.message import Message
from lightningbus.bus.jetstream.pull_consumer import PullConsumer
from lightningbus.bus.lease import LeaseRenewer
from lightningbus.bus.streams.specs import ACK_WAIT_SECONDS, GRADERS
from lightningbus.common.aio import cancel_and_wait, first_completed
from lightningbus.common.observability import metrics
from lightningbus.common.observability.faults import count_fault
from lightningbus.graders.errors import GraderError
from lightningbus.graders.grade import Grade
from lightningbus.graders.grading import Grading, open_grading
from lightningbus.graders.open_groups import OpenGroup, OpenGroups
from lightningbus.graders.records import FAILED, build_ending, build_event
from lightningbus.graders.settings import GraderSettings
from lightningbus.graders.submission import read_request
from lightningbus.schemas import ids, subjects
from lightningbus.schemas.codec import DecodeError
from lightningbus.schemas.grading import LIVE, GradingRequest
from lightningbus.schemas.text import shorten_line

log = logging.getLogger(__name__)

GIVE_BACK_SECONDS = 5.0
LISTEN_SECONDS = 2.5
"""A grader says once a second that it is there."""
MAX_DELIVERIES = 50
"""Deliveries of an attempt that no grader lived to settle; then it is not graded."""
STATE = "grading"


async def run(bus: Bus, settings: GraderSettings, stop: asyncio.Event) -> None:
    """Grade until asked to stop.

    Raises `GraderError` if a function cannot be loaded, a judge refuses the key, or pairs are compared and another
    grader runs, and `DlqLimitExceededError` when most requests are unreadable.
    """
    grader_id = default_instance_id(settings.id)
    if settings.compares_pairs:
        await refuse_second(bus, grader_id)
    async with open_grading(settings) as grading:
        await Grader(bus, settings, grader_id, grading).run(stop)


async def refuse_second(bus: Bus, grader_id: str) -> None:
    """Raise `GraderError` if another grader runs: the rollouts of a group must come to one process."""
    async with bus.fleet("grader") as fleet:
        await asyncio.sleep(LISTEN_SECONDS)
        other = next((beat.id for beat in fleet.members() if beat.id != grader_id and beat.state == STATE), None)
    if other is not None:
        raise GraderError(f"grader {other!r} runs already: a judge that compares pairs needs a single grader")


class Grader:
    """One grader process."""

    def __init__(self, bus: Bus, settings: GraderSettings, grader_id: str, grading: Grading) -> None:
        self._bus, self._settings, self._id, self._grading = bus, settings, grader_id, grading
        self._sha256 = settings.compute_sha256()
        self._groups = OpenGroups(settings.compares_pairs, settings.group_timeout_seconds, self._start)
        self._dlq_limit = DlqLimit(f"grader {grader_id}")
        self._tasks: set[asyncio.Task[None]] = set()
        self._fatal: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._num_held = self._num_graded = self._num_failed = 0
        self._problem = ""
        self._ack_wait = ACK_WAIT_SECONDS

    async def run(self, stop: asyncio.Event) -> None:
        """See `run`."""
        async with (
            self._bus.heartbeat("grader", self._id, self._describe),
            self._bus.pull(GRADERS, self._settings.num_slots) as puller,
        ):
            self._ack_wait = await self._bus.get_ack_wait(GRADERS)
            try:
                await first_completed(self._consume(puller), stop.wait(), self._fatal)
            finally:
                serving = set(self._tasks)
                if serving and stop.is_set():
                    await asyncio.wait(serving, timeout=self._settings.drain_timeout_seconds)
                await cancel_and_wait(*self._tasks, retry_after=GIVE_BACK_SECONDS)

    async def _consume(self, puller: PullConsumer) -> None:
        async for message in puller:
            self._spawn(self._serve(message))

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, message: Message) -> None:
        """Settle one message; no error of it costs another."""
        self._num_held += 1
        try:
            async with LeaseRenewer(message, self._ack_wait):
                await self._settle(message)
        except asyncio.CancelledError:
            await self._give_back(message, 0.0)
            raise
        except Exception as error:
            self._problem = f"{message.subject}: {str(error) or type(error).__name__}"
            log.warning("given back: %s", self._problem)
            if not isinstance(error, (BusError, NatsError, GraderError)):
                count_fault(message.subject, error)
            await self._give_back(message, GIVE_BACK_SECONDS)
        finally:
            self._num_held -= 1

    async def _settle(self, message: Message) -> None:
        try:
            request = message.decode_as(GradingRequest)
            if request.ending.end is None:
                raise DecodeError("GradingRequest holds no result of an attempt")
        except DecodeError as error:
            await self._reject_unreadable(message, str(error))
            return
        self._dlq_limit.record_valid()
        if message.num_delivered > MAX_DELIVERIES and not request.problem:
            request = replace(request, problem=f"{MAX_DELIVERIES} graders took it and none of them lived to grade it")
        if not is_gradable(request):
            await self._publish(request, None)
        group = self._groups.add(request)
        # Settled once the ends of its whole group are published: after a crash it is compared with the same others.
        problem = (await asyncio.shield(group.errors)).get(request.ending.execution_id, "")
        if problem:
            await DeadLetterQueue(self._bus).add(message, f"{FAILED}: {problem}")
        else:
            await message.ack()

    async def _reject_unreadable(self, message: Message, reason: str) -> None:
        try:
            self._dlq_limit.record_invalid(reason)
        except DlqLimitExceededError as error:
            self._end_process(error)
            await self._give_back(message, GIVE_BACK_SECONDS)
            return
        await DeadLetterQueue(self._bus).add(message, reason)

    def _start(self, group: OpenGroup) -> None:
        """Begin to grade a group that is closed."""
        self._spawn(self._finish(group))

    async def _finish(self, group: OpenGroup) -> None:
        """Grade a group and publish the ends of its attempts."""
        try:
            group.errors.set_result(await self._grade(group))
        except asyncio.CancelledError:
            group.errors.cancel()
            raise
        except Exception as error:  # of the bus, or of every grade: what was taken is given back
            if isinstance(error, GraderError):
                self._end_process(error)
            group.errors.set_exception(error)
            group.errors.exception()  # taken, if nobody waits any more

    async def _grade(self, group: OpenGroup) -> dict[str, str]:
        """Return the reasons why grading failed, by execution."""
        errors = {
            request.ending.execution_id: request.problem
            for request in group.requests
            if request.problem and has_ended_well(request)
        }
        gradable = [request for request in group.requests if is_gradable(request)]
        grades = await self._grading.grade([read_request(request) for request in gradable]) if gradable else []
        for request, grade in zip(gradable, grades, strict=True):
            await self._publish(request, grade)
            if grade.error and grade.reward is None:
                errors[request.ending.execution_id] = grade.error
        return errors

    async def _publish(self, request: GradingRequest, grade: Grade | None) -> None:
        """Publish the event about a grade, then the end of its attempt; a second time changes nothing.

        Waits for room in their streams as long as it takes: an attempt that is given back counts as one more delivery.
        """
        batch = request.ending
        traceparent = ids.traceparent(
            ids.trace_id(batch.rollout_id), ids.root_span_id(batch.rollout_id, batch.execution_id)
        )
        if grade is not None:
            event = build_event(read_request(request), grade, LIVE, self._sha256)
            msg_id = ids.graded_msg_id(batch.execution_id, LIVE, self._sha256) + (
                f":{event.graded_at_ns}" if request.is_replay else ""
            )
            await self._bus.publish(
                subjects.ROLLOUT_GRADED, event, msg_id=msg_id, traceparent=traceparent, timeout=math.inf
            )
        ending = build_ending(request, grade, request.problem)
        if not request.is_replay:
            msg_id = ids.batch_msg_id(batch.execution_id, batch.sequence)
            subject = subjects.rollout(batch.mode)
            await self._bus.publish(subject, ending, msg_id=msg_id, traceparent=traceparent, timeout=math.inf)
        assert ending.end is not None
        self._num_graded += 1
        self._num_failed += ending.end.outcome == FAILED
        metrics.grades.labels(ending.end.outcome).inc()

    def _end_process(self, error: Exception) -> None:
        if not self._fatal.done():
            self._fatal.set_exception(error)

    async def _give_back(self, message: Message, delay: float) -> None:
        with suppress(Exception):  # cut off from the bus: its lease runs out
            await message.nak(delay)

    def _describe(self) -> dict[str, Any]:
        status: dict[str, Any] = {"held": self._num_held, "graded": self._num_graded}
        if self._num_failed:
            status["failed"] = self._num_failed
        if self._bus.blocked_subjects:
            status["waits_for_room"] = self._bus.blocked_subjects
        if self._problem:
            status["problem"] = shorten_line(self._problem, 200)
        return {"state": STATE, "status": status}


def is_gradable(request: GradingRequest) -> bool:
    """Return whether an attempt ended well and can be graded. Pure."""
    return not request.problem and has_ended_well(request)


def has_ended_well(request: GradingRequest) -> bool:
    """Return whether an attempt ended well, so that it deserves a grade. Pure."""
    return request.ending.end is not None and request.ending.end.outcome == "ok"
