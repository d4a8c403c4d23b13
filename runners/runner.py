"""The runner: leases tasks, runs each in a free slot, publishes what happened, then acknowledges the task."""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable
from typing import Any

from nats.errors import Error as NatsError

from bus import Bus, BusError, Delivery, Lease, PoisonFlood, PoisonLimit, leased, metrics, own_id, runner_tasks, tracing
from bus.cancelling import cancel
from bus.doors import read_key
from bus.faults import count_fault
from bus.tasks import foreign_record
from runners import attempts
from runners.admission import Allowance
from runners.attempts import Decision
from runners.ending import Ending, run_agent
from runners.gateway import Gateway
from runners.host import Host
from runners.hosts import make_hosts, uses_socket
from runners.inmate import Keeper
from runners.record import MAX_ERROR, Attempt
from runners.settings import RunnerSettings
from runners.slot import Slot
from schemas import attributes, identity, subjects
from schemas.codec import DecodeError, EncodeError, decode
from schemas.events import Outcome, Task, TaskKey
from schemas.text import shorten

log = logging.getLogger(__name__)

GIVE_BACK_SECONDS = 5.0
"""How long a stopping runner tries to say that a rollout was cancelled; its task is given back in any case."""
UNREADABLE_SECONDS = 5.0
TRANSIENT = (BusError, NatsError)
"""Errors of the bus, after which a task is given back however often it was delivered."""
FORESEEN = (*TRANSIENT, EncodeError)
"""Errors that are nobody's fault here, or the task's own; any other is a fault of the runner's."""
RATE_SECONDS = 10.0


async def run(bus: Bus, settings: RunnerSettings, stop: asyncio.Event) -> None:
    """Serve until asked to stop, then let running rollouts finish or give them back.

    Raises `CannotStart` when the agent cannot be started as configured, `bus.AccessError` when the cluster key cannot
    be read, `PoisonFlood` when most tasks are unreadable.
    """
    await Runner(bus, settings).run(stop)


class Runner:
    """One runner process."""

    def __init__(self, bus: Bus, settings: RunnerSettings) -> None:
        self._bus = bus
        self._settings = settings
        self.id = own_id(settings.id)
        self._hosts: dict[int, Host] = {}
        self._keeper = Keeper()
        self._free: asyncio.Queue[Slot] = asyncio.Queue()
        self._running: set[asyncio.Task[None]] = set()
        self._state = "starting"
        self._done = 0
        self._given_back = 0
        self._poison = PoisonLimit(f"runner {self.id}")
        self._flood: PoisonFlood | None = None
        self._ended_at: list[float] = []
        self._problem = ""
        self._gateway: Gateway
        self._stop_pulling: Callable[[], None]

    async def run(self, stop: asyncio.Event) -> None:
        """See `run`."""
        settings = self._settings
        key = read_key(settings.cluster_key_file) if settings.cluster_key_file is not None else ""
        consumer = runner_tasks(settings.name, settings.ack_wait)
        await self._bus.ensure(consumer)
        async with (
            self._bus.fleet("inference") as fleet,
            Gateway(
                fleet,
                self._send,
                settings.concurrency,
                settings.host,
                settings.token_in_token_out,
                key,
                settings.one_version,
                Allowance(settings.requests_at_once, settings.requests_per_second),
                uses_socket(settings),
            ) as self._gateway,
            self._bus.beat("runner", self.id, self._describe),
            self._keeper,
        ):
            try:
                await self._start_hosts()
                log.info("runner %s takes tasks of agent %s", self.id, self._settings.name)
                self._state = "running"
                async with self._bus.pull(consumer, slots=self._settings.concurrency) as puller:
                    self._stop_pulling = puller.stop
                    stopping = asyncio.create_task(_then(stop, puller.stop))
                    async for delivery in puller:
                        slot = await self._free.get()
                        work = asyncio.create_task(self._serve(slot, delivery))
                        self._running.add(work)
                        metrics.tasks_leased.inc()
                        metrics.slots_busy.set(len(self._running))
                        work.add_done_callback(self._ended)
                    stopping.cancel()
                    await self._drain()
                if self._flood is not None:
                    raise self._flood
            finally:
                await asyncio.gather(*(host.stop() for host in self._hosts.values()))

    async def _start_hosts(self) -> None:
        slots, paths = self._gateway.slots, self._gateway.paths
        hosts = make_hosts(self._settings, [slot.environment for slot in slots], self._keeper, paths)
        self._hosts = dict(enumerate(hosts))
        first, *others = self._gateway.slots
        await self._hosts[first.number].start()  # one first: a wrong setting is said once
        await asyncio.gather(*(self._hosts[slot.number].start() for slot in others))
        for slot in self._gateway.slots:
            self._free.put_nowait(slot)
        metrics.slots.set(len(slots))

    async def _drain(self) -> None:
        self._state = "draining"
        if self._running:
            log.info("runner %s: %d rollouts are still running", self.id, len(self._running))
            await asyncio.wait(self._running, timeout=self._settings.drain_seconds)
        await cancel(*self._running, again=2 * GIVE_BACK_SECONDS)
        log.info("runner %s stops: %d rollouts done, %d given back", self.id, self._done, self._given_back)

    def _ended(self, work: asyncio.Task[None]) -> None:
        self._running.discard(work)
        metrics.slots_busy.set(len(self._running))
        if not work.cancelled() and work.exception() is not None:
            log.error("a rollout could not be handled: %r", work.exception())

    async def _serve(self, slot: Slot, delivery: Delivery) -> None:
        rollout = delivery.headers.get(subjects.MSG_ID_HEADER, delivery.subject)
        try:
            async with leased(delivery, self._settings.ack_wait) as lease:
                await self._take(slot, delivery, lease)
        except asyncio.CancelledError:
            await self._give_back(delivery, 0.0)
            raise
        except Exception as error:  # whatever it is, it costs neither the slot nor the task
            self._problem = shorten(str(error) or type(error).__name__, MAX_ERROR)
            log.warning("%s given back: %s", rollout, self._problem)
            if not isinstance(error, FORESEEN):
                count_fault(rollout, error)
            if isinstance(error, TRANSIENT) or not await self._is_given_up(delivery):
                await self._give_back(delivery, attempts.retry_after(delivery.deliveries))
        finally:
            slot.end()
            self._free.put_nowait(slot)

    async def _is_given_up(self, delivery: Delivery) -> bool:
        """Whether a task that fails its runner at every delivery has become a dead letter."""
        if delivery.deliveries < attempts.MOST_DELIVERIES:
            return False
        try:
            await self._bus.bury(delivery, f"{delivery.deliveries} times an error of the runner's own: {self._problem}")
        except Exception as error:
            log.warning("%s could not be buried: %s", delivery.subject, error)
            return False
        return True

    async def _give_back(self, delivery: Delivery, delay: float) -> None:
        self._given_back += 1
        metrics.tasks_given_back.inc()
        try:
            await delivery.nak(delay)
        except Exception as error:  # cut off from the bus, say: its lease runs out
            log.warning("%s could not be given back: %s", delivery.subject, error)

    async def _take(self, slot: Slot, delivery: Delivery, lease: Lease) -> None:
        try:
            task = delivery.as_(Task)
        except DecodeError as error:
            await self._refuse(delivery, str(error))
            return
        self._poison.good()
        parent = delivery.headers.get(subjects.TRACE_HEADER, "")
        if foreign := foreign_record(task, delivery.subject, parent, delivery.timestamp_ns):
            await self._bus.record_tasks([foreign])
        attempt = Attempt(task, task.earlier_attempts + delivery.deliveries, self.id, delivery.timestamp_ns)
        reason = attempts.unusable(task)
        if not reason and attempts.exhausted(task, delivery.deliveries):
            reason = f"{task.max_attempts} runners took this task and none of them lived to say what came of it"
        if reason:
            attempt.conclude("poisoned", None, reason, "")
            await self._send(attempt)
            await self._bus.bury(delivery, f"poisoned: {reason}")
            return
        said: tracing.Said = {
            attributes.RUN: task.run,
            attributes.ROLLOUT: attempt.rollout,
            attributes.ATTEMPT: attempt.number,
        }
        with tracing.span(f"attempt {task.agent}", said, parent, "consumer") as traced:
            attempt.traceparent = traced.traceparent
            outcome = await self._run(slot, delivery, lease, task, attempt)
            traced.note({attributes.OUTCOME: outcome})
            if outcome != "ok":
                traced.failed(outcome)

    async def _run(self, slot: Slot, delivery: Delivery, lease: Lease, task: Task, attempt: Attempt) -> Outcome:
        try:
            end = await run_agent(self._hosts[slot.number], slot, task, attempt)
        except asyncio.CancelledError:
            attempt.conclude("cancelled", None, f"runner {self.id} was stopped", "", final=False)
            with contextlib.suppress(BusError, NatsError, TimeoutError):
                async with asyncio.timeout(GIVE_BACK_SECONDS):
                    await self._send(attempt, GIVE_BACK_SECONDS)
            raise
        if not lease.held(asyncio.get_running_loop().time()):
            log.warning(
                "rollout %s: its lease ran out, so another runner may have it too", attempt.rollout, extra=attempt.named
            )
        with tracing.span("publish"):
            await self._conclude(attempt, delivery, attempts.decide(task, delivery.deliveries, end.outcome), end)
        return end.outcome

    async def _refuse(self, delivery: Delivery, reason: str) -> None:
        """A task nobody can read: a dead letter, and the last word on its rollout if at least that can be read."""
        try:
            self._poison.bad(reason)
        except PoisonFlood as flood:
            self._flood = flood
            self._stop_pulling()
            await self._give_back(delivery, UNREADABLE_SECONDS)
            return
        with contextlib.suppress(DecodeError):
            attempt = Attempt(decode(TaskKey, delivery.data), delivery.deliveries, self.id, delivery.timestamp_ns)
            attempt.conclude("poisoned", None, reason, "")
            await self._send(attempt)
        await self._bus.bury(delivery, reason)

    async def _conclude(self, attempt: Attempt, delivery: Delivery, decision: Decision, end: Ending) -> None:
        """Publish how an attempt ended, then settle its task accordingly."""
        if end.outcome != "ok":
            self._problem = end.error
            said = (attempt.rollout, attempt.number, end.outcome, end.error)
            log.warning("rollout %s attempt %d: %s: %s", *said, extra=attempt.named)
        final = decision.retry_after is None
        attempt.conclude(end.outcome, end.reward, end.error, end.result, final, end.reward_span)
        await self._send(attempt)
        if decision.retry_after is not None:
            await delivery.nak(delay=decision.retry_after)
            return
        if decision.dead:
            await self._bus.bury(delivery, f"{end.outcome}: {end.error}")
        else:
            await delivery.ack()
        self._done += 1
        self._ended_at.append(time.monotonic())

    async def _send(self, attempt: Attempt, seconds: float = math.inf) -> None:
        """Publish what an attempt has cut so far, in order; what fails is sent first the next time.

        A full stream is waited for, however long: meanwhile this slot takes no other task.
        """
        async with attempt.sending:
            while attempt.unsent:
                batch = attempt.unsent[0]
                await self._bus.publish(
                    subjects.rollout(batch.mode),
                    batch,
                    msg_id=identity.batch_msg_id(batch.execution, batch.sequence),
                    traceparent=identity.traceparent(attempt.trace_id, attempt.root_id),
                    timeout=seconds,
                )
                attempt.unsent.popleft()

    def _describe(self) -> dict[str, Any]:
        now = time.monotonic()
        self._ended_at = [moment for moment in self._ended_at if now - moment < RATE_SECONDS]
        detail: dict[str, Any] = {
            "agent": self._settings.name,
            "busy": f"{len(self._running)}/{self._settings.concurrency}",
            "done": self._done,
            "rollouts_per_s": len(self._ended_at) / RATE_SECONDS,
        }
        if self._bus.full:
            detail["waits_for_room"] = self._bus.full
        if problem := self._gateway.upstream.problem() or self._problem:
            detail["last_problem"] = problem[:120]
        return {"state": self._state, "detail": detail}


async def _then(event: asyncio.Event, act: Any) -> None:
    await event.wait()
    act()
