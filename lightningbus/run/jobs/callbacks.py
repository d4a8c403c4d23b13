"""Callbacks of a training job: they get its steps, evaluations and alerts, and may end training."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any

import numpy as np
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError

from lightningbus.learner.settings.user_code import describe_error
from lightningbus.run.errors import UserError
from lightningbus.run.evaluation.evaluation import Evaluation
from lightningbus.run.jobs.callback_thread import CallbackThread

log = logging.getLogger(__name__)

CALL_SECONDS = 60.0
"""Longest wait for a method of a callback; a slower one is named, and training goes on without it."""
POLL_SECONDS = 1.0
"""Seconds between two queries to the store, which sends no notifications."""
STEPS = (
    "SELECT model, step, version, ended_at, metrics FROM training_steps "
    "WHERE run_id = {run_id:String} AND step > {after:UInt32} ORDER BY step, model"
)
ALERTS = (
    "SELECT role, reason, resolved, fired_at, toUnixTimestamp64Nano(fired_at) AS at_ns FROM alerts "
    "WHERE at_ns > {after:Int64} ORDER BY at_ns"
)
NEWEST_ALERT = "SELECT toUnixTimestamp64Nano(max(fired_at)) FROM alerts"


@dataclass(frozen=True, slots=True)
class Step:
    """A training step that the store has."""

    model: str
    step: int
    version: int
    """Weight version that the step produced."""
    ended_at: datetime
    metrics: Mapping[str, float]
    """Metrics by name; docs/store.md lists them with units."""

    @property
    def reward(self) -> float | None:
        """Mean reward over the rollouts of the step that have one; None where the step has no such metric."""
        return self.metrics.get("reward/mean")


@dataclass(frozen=True, slots=True)
class Alert:
    """A stall or fault that a role has raised, or its end."""

    role: str
    reason: str
    is_resolved: bool
    fired_at: datetime


@dataclass(frozen=True, slots=True)
class Change:
    """Request of a callback for other settings of a learner, from the next step on.

    The learner ends its step, writes a checkpoint and starts again with them: no rollout is lost. That takes as long as
    loading the model, so change settings now and then, not in each step.
    """

    learner: Mapping[str, Any]
    """Settings by their names in a run file, as ``{"actor": {"optim": {"lr": 1e-6}}}``; the others stay.

    A section may be an object of `lightningbus.settings`, of which the fields count that are set.
    """
    reason: str = ""
    """Reason for the record, such as ``the reward fell``."""
    model: str = ""
    """Model whose learner it is; empty: the only one."""


class Callback:
    """Base of a callback of `train`; its methods run in a thread of the calling process, one after the other.

    Each may be async, and may return True or a reason to stop: the step in progress is dropped, the newest version is
    evaluated, and `train` returns as it does after the last step. Or it returns a `Change`, and training goes on with
    other settings. Any other result has no effect. An exception ends the run with a `UserError`; the same call with
    resume=True goes on. Nobody waits for a method that takes longer than a minute: the log names it, and its result
    counts when it comes.
    """

    def on_step(self, step: Step) -> str | Change | None:
        """Take a step of this start, in the order of steps."""

    def on_evaluation(self, evaluation: Evaluation) -> str | Change | None:
        """Take the held-out rewards of a version once its evaluation has ended."""

    def on_alert(self, alert: Alert) -> str | Change | None:
        """Take an alert that was raised, or has ended, since this start."""


class StepQueue(Callback):
    """A callback whose steps are taken from it later, or never where the job ends before."""

    def __init__(self) -> None:
        self.last_taken: dict[str, int] = {}
        """Last step that was taken, by model."""


@dataclass
class ReportedSteps:
    """Last step of each model that the callbacks of a job, and its loops over steps, had; None: there were none."""

    by_callbacks: dict[str, int] | None = None
    by_loops: dict[str, int] | None = None


class CallbackCaller:
    """Calls the callbacks of one start of a job; each event reaches each of them once, in order."""

    def __init__(
        self,
        callbacks: Sequence[Callback],
        run: str,
        change: Callable[[Change, str], Awaitable[None]],
        earlier: ReportedSteps | None = None,
    ) -> None:
        """``change`` is called with each change that a callback asks for, and the name of its method.

        ``earlier``: the steps that those of the start before had; the steps after these are new.
        """
        self._callbacks, self._run, self._change = callbacks, run, change
        self._earlier = earlier or ReportedSteps()
        self._last_steps: list[dict[str, int]] = [{} for _ in callbacks]
        self._last_alert_ns = 0
        self._threads = [CallbackThread(f"callback {type(callback).__name__}") for callback in callbacks]
        self._late: list[tuple[str, Callable[..., Any], asyncio.Future[Any]]] = []
        """Calls that nobody waits for, with their names."""
        self._ignored: set[str] = set()
        """Names of methods whose results had no effect, and were said to have none."""
        self._stopped = asyncio.Event()
        self.stop_reason = ""
        """Reason why training is to end; empty: none."""

    def stop(self, reason: str) -> None:
        """End training for a reason; the first one is kept."""
        self.stop_reason = self.stop_reason or reason
        self._stopped.set()

    async def wait_stopped(self) -> None:
        """Wait until training is to end."""
        await self._stopped.wait()

    async def begin(self, client: Client) -> None:
        """Leave out the alerts before this start, and the steps that callbacks of the start before had.

        Where that one had none, all steps before this start are left out.
        """
        if self._callbacks:
            stored = {step.model: step.step for step in await self._read_steps(client)}
            for callback, last in zip(self._callbacks, self._last_steps, strict=True):
                is_loop = isinstance(callback, StepQueue)
                earlier = self._earlier.by_loops if is_loop else self._earlier.by_callbacks
                last |= stored if earlier is None else earlier
                if isinstance(callback, StepQueue):
                    callback.last_taken = dict(last)
            ((self._last_alert_ns,),) = (await asyncio.to_thread(client.query, NEWEST_ALERT)).result_rows

    async def follow(self, client: Client) -> None:
        """Report steps and alerts for ever; a store that is away is asked again. Raise `UserError` as `report_new`."""
        while True:
            with suppress(ClickHouseError):  # the store is being started again
                await self.report_new(client)
            await asyncio.sleep(POLL_SECONDS)

    async def report_new(self, client: Client) -> None:
        """Report the steps and alerts that are new in the store; raise `UserError` if a callback fails."""
        if not self._callbacks:
            return
        await self._take_late()
        for step in await self._read_steps(client):
            for index, last in enumerate(self._last_steps):
                if step.step > last.get(step.model, 0):
                    last[step.model] = step.step
                    await self._call_one(index, "on_step", step)
        rows = (await asyncio.to_thread(client.query, ALERTS, {"after": self._last_alert_ns})).result_rows
        for role, reason, is_resolved, fired_at, fired_at_ns in rows:
            self._last_alert_ns = fired_at_ns
            await self._call("on_alert", Alert(role, reason, is_resolved, fired_at))

    async def report_evaluation(self, evaluation: Evaluation) -> None:
        """Report an evaluation; raise `UserError` if a callback fails."""
        await self._take_late()
        await self._call("on_evaluation", evaluation)

    async def _read_steps(self, client: Client) -> list[Step]:
        after = min((step for last in self._last_steps for step in last.values()), default=0)
        parameters = {"run_id": self._run, "after": after}
        rows = (await asyncio.to_thread(client.query, STEPS, parameters)).result_rows
        return [Step(model, step, version, at, MappingProxyType(metrics)) for model, step, version, at, metrics in rows]

    async def _call(self, method: str, event: Any) -> None:
        for index in range(len(self._callbacks)):
            await self._call_one(index, method, event)

    async def _call_one(self, index: int, method: str, event: Any) -> None:
        callback, thread = self._callbacks[index], self._threads[index]
        name, function = f"{type(callback).__name__}.{method}", getattr(callback, method)
        is_behind = thread.is_busy
        call = name, function, asyncio.wrap_future(thread.submit(function, event))
        if not is_behind:
            await asyncio.wait([call[-1]], timeout=CALL_SECONDS)
        if call[-1].done():
            await self._take(*call)
            return
        self._late.append(call)
        if not is_behind:
            log.warning("callback %s has not ended in %g s: training goes on without it", name, CALL_SECONDS)

    async def _take_late(self) -> None:
        """Do what the calls ask for that nobody waited for and that have ended."""
        for call in [call for call in self._late if call[-1].done()]:
            self._late.remove(call)
            await self._take(*call)

    async def _take(self, name: str, function: Callable[..., Any], call: "asyncio.Future[Any]") -> None:
        """Do what the result of a call asks for; raise `UserError` if the call failed."""
        if (error := call.exception()) is not None:
            raise UserError(f"callback {name} failed: {describe_error(error, function)}") from error
        answer = call.result()
        if isinstance(answer, Change):
            await self._change(answer, name)
        elif isinstance(answer, str | bool | np.bool_):
            if answer:
                self.stop(f"{name}: {answer}" if isinstance(answer, str) else name)
        elif answer is not None and name not in self._ignored:
            self._ignored.add(name)
            log.warning("callback %s returned a %s: return True or a reason to stop", name, type(answer).__name__)

    def end(self) -> None:
        """Count what loops have not taken yet as taken: the job has reached its end, and they still get it."""
        for callback, last in zip(self._callbacks, self._last_steps, strict=True):
            if isinstance(callback, StepQueue):
                callback.last_taken = dict(last)

    @property
    def reported(self) -> ReportedSteps:
        """The steps that callbacks and loops have had by now."""
        reported = ReportedSteps(self._earlier.by_callbacks, self._earlier.by_loops)
        for callback, last in zip(self._callbacks, self._last_steps, strict=True):
            if isinstance(callback, StepQueue):
                reported.by_loops = dict(callback.last_taken)
            else:
                reported.by_callbacks = dict(last)
        return reported
