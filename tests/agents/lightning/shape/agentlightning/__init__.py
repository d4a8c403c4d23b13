"""The names and signatures of agentlightning 0.3.0 that its agents and ours meet at; rewards leave by OTLP as there."""

import contextlib
import functools
import inspect
import weakref
from dataclasses import dataclass, field
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

_active: list[Any] = []


@dataclass
class LLM:
    endpoint: str
    model: str
    api_key: str | None = None
    sampling_parameters: dict[str, Any] = field(default_factory=dict)

    def get_base_url(self, *rollout):
        return self.endpoint


@dataclass(kw_only=True)
class Attempt:
    rollout_id: str
    attempt_id: str
    sequence_id: int
    start_time: float
    status: str


@dataclass(kw_only=True)
class AttemptedRollout:
    rollout_id: str
    input: Any
    start_time: float
    mode: str
    status: str
    attempt: Attempt


class LitAgent:
    def is_async(self):
        return type(self).rollout_async is not LitAgent.rollout_async

    def set_runner(self, runner):
        self._runner = weakref.ref(runner)

    @property
    def tracer(self):
        return self._runner().tracer

    def rollout(self, task, resources, rollout):
        raise NotImplementedError

    def training_rollout(self, task, resources, rollout):
        return self.rollout(task, resources, rollout)

    def validation_rollout(self, task, resources, rollout):
        return self.rollout(task, resources, rollout)

    async def rollout_async(self, task, resources, rollout):
        raise NotImplementedError

    async def training_rollout_async(self, task, resources, rollout):
        return await self.rollout_async(task, resources, rollout)

    async def validation_rollout_async(self, task, resources, rollout):
        return await self.rollout_async(task, resources, rollout)


class _Function(LitAgent):
    def __init__(self, function):
        functools.update_wrapper(self, function)

    def __call__(self, *arguments, **named):
        return self.__wrapped__(*arguments, **named)

    def is_async(self):
        return inspect.iscoroutinefunction(self.__wrapped__)

    def rollout(self, task, resources, rollout):
        offered = {"llm": next(iter(resources.values())), "rollout": rollout}
        taken = inspect.signature(self.__wrapped__).parameters
        return self.__wrapped__(task, **{name: value for name, value in offered.items() if name in taken})

    async def rollout_async(self, task, resources, rollout):
        return await self.rollout(task, resources, rollout)


rollout = _Function


class OtelTracer:
    def init_worker(self, number):
        self._provider = TracerProvider()
        trace.set_tracer_provider(self._provider)

    def _get_tracer_provider(self):
        return self._provider

    @contextlib.asynccontextmanager
    async def trace_context(self):
        assert not _active, "an active tracer is already set"
        _active.append(self)
        try:
            yield
        finally:
            _active.clear()


def get_active_tracer():
    return _active[0] if _active else None


def emit_reward(reward):
    if not _active:
        raise RuntimeError("No active tracer found")
    fields = {"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": float(reward)}
    _active[0]._get_tracer_provider().get_tracer("otel").start_span(
        "agentlightning.annotation", attributes=fields
    ).end()
    return fields


def find_final_reward(spans):
    return next((span["agentlightning.reward.0.value"] for span in reversed(spans)), None)
