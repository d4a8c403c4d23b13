"""The runner: leases tasks, runs each in a free slot, publishes what happened, then acknowledges the task."""

import asyncio
import json
import logging
import os
import socket
import time
from typing import Any

from nats.errors import Error as NatsError

from bus import Bus, BusError, Delivery, runner_tasks
from runners import attempts, rewards
from runners.gateway import Gateway, Slot
from runners.host import AgentFault, CannotStart, Host, make_host
from runners.record import Attempt
from runners.settings import RunnerSettings
from schemas import identity, subjects
from schemas.codec import DecodeError
from schemas.events import Outcome, SpanBatch, Task

log = logging.getLogger(__name__)

PUBLISH_SECONDS = 300.0
"""How long a finished rollout waits for a full or absent bus before its task is given back."""
RATE_SECONDS = 10.0


async def run(bus: Bus, settings: RunnerSettings, stop: asyncio.Event) -> None:
    """Serve until asked to stop, then let running rollouts finish or give them back.

    Raises `CannotStart` when the agent cannot be started as configured.
    """
    await Runner(bus, settings).run(stop)


class Runner:
    """One runner process."""

    def __init__(self, bus: Bus, settings: RunnerSettings) -> None:
        self._bus = bus
        self._settings = settings
        self.id = settings.id or f"{socket.gethostname().split('.')[0]}-{os.getpid()}"
        self._hosts: dict[int, Host] = {}
        self._free: asyncio.Queue[Slot] = asyncio.Queue()
        self._running: set[asyncio.Task[None]] = set()
        self._state = "starting"
        self._done = 0
        self._ended_at: list[float] = []
        self._problem = ""
        self._gateway: Gateway

    async def run(self, stop: asyncio.Event) -> None:
        """See `run`."""
        consumer = runner_tasks(self._settings.name, self._settings.ack_wait)
        await self._bus.ensure(consumer)
        async with (
            self._bus.fleet("inference") as fleet,
            Gateway(fleet, self._settings.concurrency, self._settings.host) as self._gateway,
            self._bus.beat("runner", self.id, self._describe),
        ):
            try:
                await self._start_hosts()
                log.info("runner %s takes tasks of agent %s", self.id, self._settings.name)
                self._state = "running"
                async with self._bus.pull(consumer, slots=self._settings.concurrency) as puller:
                    stopping = asyncio.create_task(_then(stop, puller.stop))
                    async for delivery in puller:
                        slot = await self._free.get()
                        work = asyncio.create_task(self._serve(slot, delivery))
                        self._running.add(work)
                        work.add_done_callback(self._ended)
                    stopping.cancel()
                    await self._drain()
            finally:
                await asyncio.gather(*(host.stop() for host in self._hosts.values()))

    async def _start_hosts(self) -> None:
        for slot in self._gateway.slots:
            self._hosts[slot.number] = make_host(self._settings, slot.environment)
        first, *others = self._gateway.slots
        await self._hosts[first.number].start()  # one first: a wrong setting is said once
        await asyncio.gather(*(self._hosts[slot.number].start() for slot in others))
        for slot in self._gateway.slots:
            self._free.put_nowait(slot)

    async def _drain(self) -> None:
        self._state = "draining"
        if self._running:
            log.info("runner %s: %d rollouts are still running", self.id, len(self._running))
            await asyncio.wait(self._running, timeout=self._settings.drain_seconds)
        for work in self._running:
            work.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _ended(self, work: asyncio.Task[None]) -> None:
        self._running.discard(work)
        if not work.cancelled() and work.exception() is not None:
            log.error("a rollout could not be handled", exc_info=work.exception())

    async def _serve(self, slot: Slot, delivery: Delivery) -> None:
        try:
            task = delivery.as_(Task)
        except DecodeError as error:
            await self._bus.bury(delivery, str(error))
            self._free.put_nowait(slot)
            return
        try:
            async with self._bus.lease(delivery, self._settings.ack_wait):
                await self._attempt(slot, task, delivery)
        except asyncio.CancelledError:
            await delivery.nak()
            log.info("rollout %s is given back", identity.rollout_id(task.id, task.sample))
            raise
        except (BusError, NatsError, CannotStart) as error:
            self._problem = str(error)
            log.warning("task of rollout %s given back: %s", identity.rollout_id(task.id, task.sample), error)
            await delivery.nak(delay=attempts.FIRST_RETRY_SECONDS)
        finally:
            slot.end()
            self._free.put_nowait(slot)

    async def _attempt(self, slot: Slot, task: Task, delivery: Delivery) -> None:
        attempt = Attempt(task, delivery.deliveries, self.id)
        if attempts.exhausted(task, attempt.number):
            error = f"given up: {task.max_attempts} runners took this task and none finished it"
            await self._publish(attempt.batches("infra", None, error, ""))
            await delivery.ack(sync=True)
            return
        outcome, reward, error, result = await self._rollout(slot, attempt)
        decision = attempts.decide(task, attempt.number, outcome)
        if outcome != "ok":
            self._problem = error
            log.warning("rollout %s attempt %d: %s: %s", attempt.rollout, attempt.number, outcome, error)
        if decision.retry_after is not None:
            await delivery.nak(delay=decision.retry_after)
            return
        await self._publish(attempt.batches(outcome, reward, error, result))
        await delivery.ack(sync=True)
        self._done += 1
        self._ended_at.append(time.monotonic())

    async def _rollout(self, slot: Slot, attempt: Attempt) -> tuple[Outcome, float | None, str, str]:
        """Run the agent: outcome, reward, error sentence, result JSON."""
        seconds = attempt.task.deadline
        host = self._hosts[slot.number]
        await host.start()  # of an agent that died: its imports are not part of the rollout's time
        slot.begin(attempt, asyncio.get_running_loop().time() + seconds)
        try:
            async with asyncio.timeout(seconds):
                answer = await host.run(attempt.task.input)
            reward = rewards.resolve(answer, attempt.spans)
        except TimeoutError:
            if attempt.infra or attempt.held:
                return "infra", None, attempt.infra or f"no model answered within {seconds:g} s", ""
            return "timeout", None, f"the agent did not end within its deadline of {seconds:g} s", ""
        except (AgentFault, rewards.NotAReward) as error:
            if attempt.infra:
                return "infra", None, attempt.infra, ""
            if isinstance(error, AgentFault) and error.detail:
                log.warning("%s", error.detail)
            return "agent_error", None, str(error)[:2000], ""
        finally:
            slot.end()
        return "ok", reward, "", json.dumps(answer["value"], ensure_ascii=False)

    async def _publish(self, batches: Any) -> None:
        batch: SpanBatch
        for batch in batches:
            await self._bus.publish(
                subjects.spans(batch.mode),
                batch,
                msg_id=identity.batch_msg_id(batch.rollout, batch.attempt, batch.sequence),
                traceparent=identity.traceparent(
                    identity.trace_id(batch.rollout), identity.root_span_id(batch.rollout, batch.attempt)
                ),
                timeout=PUBLISH_SECONDS,
            )

    def _describe(self) -> dict[str, Any]:
        now = time.monotonic()
        self._ended_at = [moment for moment in self._ended_at if now - moment < RATE_SECONDS]
        detail: dict[str, Any] = {
            "agent": self._settings.name,
            "busy": f"{len(self._running)}/{self._settings.concurrency}",
            "done": self._done,
            "rollouts_per_s": len(self._ended_at) / RATE_SECONDS,
        }
        if self._problem:
            detail["last_problem"] = self._problem[:120]
        return {"state": self._state, "detail": detail}


async def _then(event: asyncio.Event, act: Any) -> None:
    await event.wait()
    act()
