"""The runner: pulls as many tasks as it has free slots, and runs each in a slot."""

import asyncio
import logging
import os
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from lightningbus.bus.client import Bus
from lightningbus.bus.fleet.heartbeats import Fleet, default_instance_id
from lightningbus.bus.jetstream.pull_consumer import PullConsumer
from lightningbus.bus.security.secrets import read_key
from lightningbus.bus.streams.specs import runner_consumer
from lightningbus.common.aio import cancel_and_wait
from lightningbus.common.observability import metrics
from lightningbus.runners.agent.executors import AgentExecutor
from lightningbus.runners.agent.factory import uses_socket
from lightningbus.runners.agent.process import ProcessWatchdog
from lightningbus.runners.concurrency.adaptation import ConcurrencyAdaptation, RolloutTimer
from lightningbus.runners.concurrency.pressure import NodeLoad, find_fullest
from lightningbus.runners.concurrency.search import FIRST_SLOTS, MAX_SLOTS
from lightningbus.runners.gateway.admission import RateLimits
from lightningbus.runners.gateway.external.external_endpoints import ExternalEndpoints
from lightningbus.runners.gateway.server import Gateway
from lightningbus.runners.prompts import AgentPrompts
from lightningbus.runners.recording.sending import send
from lightningbus.runners.settings import RunnerSettings
from lightningbus.runners.slots import Slots
from lightningbus.runners.task_handler import NAK_DELAY_SECONDS, TaskHandler
from lightningbus.runners.workspaces.factory import make_executors
from lightningbus.schemas.base import Mode
from lightningbus.schemas.text import shorten

log = logging.getLogger(__name__)

MODES: tuple[Mode, ...] = ("eval", "train")
"""Modes in the order in which tasks are requested: evaluations go before queued training tasks."""
PULL_SECONDS = 10.0
"""Seconds that a request for tasks waits. A free slot is requested in both modes. Once one mode has taken it, a task of
the other mode may still come and wait here, leased; so requests end soon.
"""


async def run(bus: Bus, settings: RunnerSettings, stop: asyncio.Event) -> None:
    """Serve until asked to stop, then let running rollouts finish or give them back.

    Raises `AgentStartError` when the agent cannot be started, `CredentialsError` when the inference API key or that of
    an endpoint cannot be read, `DlqLimitExceededError` when most tasks are unreadable.
    """
    await Runner(bus, settings).run(stop)


class Runner:
    """One runner process."""

    def __init__(self, bus: Bus, settings: RunnerSettings) -> None:
        self._bus = bus
        self._settings = settings
        self.id = default_instance_id(settings.id)
        self._executors: dict[int, AgentExecutor] = {}
        self._watchdog = ProcessWatchdog()
        self._pullers: dict[Mode, PullConsumer] = {}
        self._handling: set[asyncio.Task[None]] = set()
        self._state = "starting"
        self._slots = Slots(self._rate_limits)
        self._timer = RolloutTimer()
        # Nothing says how many calls an endpoint computes at once, so its runner does not try for more.
        num_fixed = settings.concurrency or (FIRST_SLOTS if settings.endpoints else None)
        self._adaptation = (
            ConcurrencyAdaptation(
                self._timer,
                self._resize,
                self._trim,
                lambda: self._slots.busy,
                self._find_load,
                self._measure_slot,
            )
            if num_fixed is None
            else None
        )
        self._max_slots = num_fixed or MAX_SLOTS
        self._num_first = num_fixed or FIRST_SLOTS
        self._gateway: Gateway
        self._fleet: Fleet
        self._prompts = AgentPrompts(bus, settings.agent_name)
        self._handler = TaskHandler(
            bus,
            self.id,
            settings.ack_wait,
            self._slots,
            self._executors,
            self._stop,
            self._prompts.choose,
            settings.graded,
            self._timer,
            settings.model_prices,
        )

    async def run(self, stop: asyncio.Event) -> None:
        """See `run`."""
        settings = self._settings
        key = read_key(settings.inference_api_key_file) if settings.inference_api_key_file is not None else ""
        endpoints = ExternalEndpoints(settings.endpoints, os.environ)
        consumers = {mode: runner_consumer(settings.agent_name, mode, settings.ack_wait) for mode in MODES}
        for consumer in consumers.values():
            await self._bus.ensure_consumer(consumer)
        async with (
            self._bus.fleet("inference") as self._fleet,
            endpoints,
            Gateway(
                self._fleet,
                partial(send, self._bus),
                self._max_slots,
                settings.host,
                settings.token_in_token_out,
                key,
                settings.sticky_weight_version,
                RateLimits(settings.max_concurrent_requests, settings.rate_limit),
                uses_socket(settings),
                endpoints,
                settings.ignored_request_fields,
                settings.model_aliases,
            ) as self._gateway,
            self._bus.heartbeat("runner", self.id, self._describe),
            self._watchdog,
            self._prompts.following(),
        ):
            try:
                await self._start_executors()
                log.info("runner %s takes tasks of agent %s", self.id, settings.agent_name)
                self._state = "running"
                async with AsyncExitStack() as pulling:
                    for mode, consumer in consumers.items():
                        pull = self._bus.pull(consumer, self._num_first, PULL_SECONDS)
                        self._pullers[mode] = await pulling.enter_async_context(pull)
                    beside = [
                        asyncio.create_task(_set_when(stop, self._stop)),
                        asyncio.create_task(self._follow_nodes()),
                    ]
                    if self._adaptation is not None:
                        beside.append(asyncio.create_task(self._adaptation.run()))
                    try:
                        await asyncio.gather(*(self._pull(mode) for mode in MODES))
                    finally:
                        await cancel_and_wait(*beside)
                    await self._drain()
                if self._handler.dlq_limit_error is not None:
                    raise self._handler.dlq_limit_error
            finally:
                await asyncio.gather(*(executor.stop() for executor in self._executors.values()))

    async def _start_executors(self) -> None:
        slots = self._gateway.slots
        environments = [slot.environment for slot in slots]
        executors = make_executors(self._settings, environments, self._watchdog, self._gateway.paths)
        self._executors.update(enumerate(executors))
        await self._executors[0].start()  # one first, so that a wrong setting is reported once
        await asyncio.gather(*(self._executors[number].start() for number in range(1, self._num_first)))
        self._slots.open(slots, self._num_first)
        metrics.slots.set(self._num_first)

    async def _resize(self, limit: int) -> None:
        """Open so many slots; raise `AgentStartError` where the agent of a further one cannot be started."""
        idle = [number for number in self._slots.idle_numbers() if number < limit]
        starts = (self._executors[number].start() for number in idle if number >= self._slots.limit)
        for error in await asyncio.gather(*starts, return_exceptions=True):
            if error is not None:
                raise error
        self._slots.resize(limit)
        metrics.slots.set(limit)

    async def _trim(self, num_warm: int) -> None:
        """End the agents of idle slots beyond so many, where each slot has a process of its own."""
        if self._settings.max_concurrent_per_process == 1 and self._settings.workspace is None:
            idle = [number for number in self._slots.idle_numbers() if number >= num_warm]
            await asyncio.gather(*(self._executors[number].stop() for number in idle))

    async def _measure_slot(self) -> float:
        """Return the bytes that a slot takes on average: its share of an agent, and of a reward function."""
        num_sharing = min(self._settings.max_concurrent_per_process, self._slots.limit)
        num_processes = 1 if self._settings.reward_fn is None else 2
        return await self._watchdog.measure_memory() * num_processes / num_sharing

    def _find_load(self) -> NodeLoad | None:
        return find_fullest(self._fleet.members(), self._gateway.upstream.called_nodes)

    async def _pull(self, mode: Mode) -> None:
        async for message in self._pullers[mode]:
            metrics.tasks_received.inc()
            work = asyncio.create_task(self._handler.serve(mode, message))
            self._handling.add(work)
            work.add_done_callback(self._handled)

    def _rate_limits(self) -> None:
        """Request as many tasks of each mode as can start: none while no node would answer their calls."""
        metrics.slots_in_use.set(self._slots.busy)
        in_flight = {mode: puller.in_flight for mode, puller in self._pullers.items()}
        is_refused = self._pullers and self._gateway.upstream.is_refused
        for mode, puller in self._pullers.items():
            puller.resize(in_flight[mode] if is_refused else self._slots.max_in_flight(mode, in_flight))

    async def _follow_nodes(self) -> None:
        """Change the requests for tasks whenever all nodes of a model come to reject the key, or one may take it."""
        was_refused = False
        while True:
            await self._fleet.wait_for_change()
            if self._gateway.upstream.is_refused != was_refused:
                was_refused = not was_refused
                self._rate_limits()

    def _stop(self) -> None:
        for puller in self._pullers.values():
            puller.stop()
        self._slots.stop()

    async def _drain(self) -> None:
        self._state = "draining"
        if self._handling:
            log.info("runner %s: %d rollouts are still running", self.id, len(self._handling))
            await asyncio.wait(self._handling, timeout=self._settings.drain_timeout_seconds)
        await cancel_and_wait(*self._handling, retry_after=2 * NAK_DELAY_SECONDS)
        log.info(
            "runner %s stops: %d rollouts done, %d given back",
            self.id,
            self._handler.num_completed,
            self._handler.num_nacked,
        )

    def _handled(self, work: asyncio.Task[None]) -> None:
        self._handling.discard(work)
        if not work.cancelled() and work.exception() is not None:
            log.error("a rollout could not be handled: %s", shorten(repr(work.exception()), 2000))

    def _describe(self) -> dict[str, Any]:
        detail: dict[str, Any] = {
            "agent": self._settings.agent_name,
            "busy": f"{self._slots.busy}/{self._slots.limit or self._num_first}",
            "done": self._handler.num_completed,
            "rollouts_per_s": self._handler.rate,
        }
        if self._adaptation is not None:
            detail["concurrency"] = f"adapts ({self._adaptation.reason})"
        if self._bus.blocked_subjects:
            detail["waits_for_room"] = self._bus.blocked_subjects
        gateway = self._gateway
        if problem := gateway.upstream.problem() or gateway.endpoints.problem() or self._handler.problem:
            detail["last_problem"] = problem[:120]
        is_refused = self._state == "running" and gateway.upstream.is_refused
        return {"state": "refused" if is_refused else self._state, "status": detail}


async def _set_when(event: asyncio.Event, act: Callable[[], None]) -> None:
    await event.wait()
    act()
