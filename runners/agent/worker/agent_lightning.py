"""Agents of Agent Lightning as functions of (task, rollout); `worker_script` loads this file only for those.

Python 3.8 or newer, standard library only. What belongs to Agent Lightning comes from the agent's own environment.

- 0.3: a ``LitAgent``, its class, or a function under ``@rollout``. It gets an ``LLM`` with our endpoint. Its spans,
  such as those of ``emit_reward``, go to our OTLP endpoint.
- 1.0: a class with ``run()``. It finds each field of its task in the variable of the field's upper-case name.

``rollout`` is ``{"id": str, "attempt": int, "mode": "train" | "eval", "model": str, "sampling_params": {...}}``.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    Agent = Callable[[Any, dict[str, Any]], Any]
    CheckParameters = Callable[..., None]
    """Of a function, the names that a call passes by position, and those it passes by keyword; raises TypeError."""

FLUSH_MILLISECONDS = 5000
FILLED = ("llm", "rollout")
"""Parameters of a function under ``@rollout`` that are filled, beside its task."""


def is_adaptable(agent: Any) -> bool:
    """Return whether an agent is a class, or comes with Agent Lightning 0.3."""
    return isinstance(agent, type) or hasattr(sys.modules.get("agentlightning"), "LitAgent")


def adapt(agent: Any, check_parameters: CheckParameters) -> Agent:
    """Turn the agent into a function of (task, rollout); raise TypeError with a sentence for an unusable one."""
    library: Any = sys.modules.get("agentlightning")
    base = getattr(library, "LitAgent", ())
    if isinstance(agent, type):
        check_parameters(agent, ())
        if not issubclass(agent, base):
            return adapt_runnable(agent, check_parameters)
        agent = agent()
    active = library.get_active_tracer()
    tracer = active or start_tracer(library)
    if isinstance(agent, base):
        call = adapt_lit_agent(library, agent, tracer, check_parameters)
    else:
        check_parameters(agent, ("task",))

        def call(task: Any, rollout: dict[str, Any]) -> Any:
            return agent(task)

    return call if active else with_tracer(call, tracer)


def adapt_runnable(agent: type, check_parameters: CheckParameters) -> Agent:
    """Adapt a class of Agent Lightning 1.0; it is instantiated for each rollout."""
    run = getattr(agent, "run", None)
    if run is None:
        raise TypeError(f"the class {agent.__name__} has no run(), and is no LitAgent: name a function or an object")
    check_parameters(run, ("self",))

    def call(task: Any, rollout: dict[str, Any]) -> Any:
        with variables(task if isinstance(task, dict) else {"input": task}):
            return finish(agent().run())

    return call


@contextlib.contextmanager
def variables(fields: dict[str, Any]) -> Iterator[None]:
    """Set each field in the environment, as text or JSON, unless the variable exists already."""
    added = {name.upper(): value for name, value in fields.items() if name.upper() not in os.environ}
    for name, value in added.items():
        os.environ[name] = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def adapt_lit_agent(library: Any, agent: Any, tracer: Any, check_parameters: CheckParameters) -> Agent:
    """Adapt a ``LitAgent``: its training rollout, or in an evaluation its validation rollout."""
    suffix = "_async" if agent.is_async() else ""
    if hasattr(agent, "__wrapped__"):  # under @rollout: its own signature names its arguments
        names = inspect.signature(agent.__wrapped__).parameters
        check_parameters(agent.__wrapped__, ("task",), [name for name in FILLED if name in names])
    elif not any(
        getattr(type(agent), name + suffix) is not getattr(library.LitAgent, name + suffix)
        for name in ("rollout", "training_rollout", "validation_rollout")
    ):
        raise TypeError(f"{type(agent).__name__} has neither rollout nor rollout_async")
    methods = {
        mode: getattr(agent, name + suffix)
        for mode, name in (("train", "training_rollout"), ("eval", "validation_rollout"))
    }
    for method in (*methods.values(), getattr(agent, "rollout" + suffix)):
        check_parameters(method, ("task",), ("resources", "rollout"))
    runner = LitAgentRunner(tracer)

    def call(task: Any, rollout: dict[str, Any]) -> Any:
        agent.set_runner(runner)  # it keeps only a weak reference
        resources = {"main_llm": make_llm(library, rollout)}
        value = finish(
            methods[rollout["mode"]](task, resources=resources, rollout=make_rollout(library, task, rollout))
        )
        # Spans instead of a reward: the last reward among them counts.
        return library.find_final_reward(value) if isinstance(value, list) else value

    return call


class LitAgentRunner:
    """The part of a runner that a ``LitAgent`` uses."""

    def __init__(self, tracer: Any) -> None:
        self.tracer = tracer


def make_llm(library: Any, rollout: dict[str, Any]) -> Any:
    """Present the policy as Agent Lightning's LLM resource."""
    return library.LLM(
        endpoint=os.environ["OPENAI_BASE_URL"],
        model=rollout["model"],
        api_key=os.environ["OPENAI_API_KEY"],
        sampling_parameters=rollout["sampling_params"],
    )


def make_rollout(library: Any, task: Any, rollout: dict[str, Any]) -> Any:
    """Build the rollout and its attempt; an evaluation is called val."""
    rollout_id, attempt, now = rollout["id"], rollout["attempt"], time.time()
    return library.AttemptedRollout(
        rollout_id=rollout_id,
        input=task,
        start_time=now,
        mode="train" if rollout["mode"] == "train" else "val",
        status="running",
        attempt=library.Attempt(
            rollout_id=rollout_id,
            attempt_id=f"{rollout_id}-{attempt}",
            sequence_id=attempt,
            start_time=now,
            status="running",
        ),
    )


def start_tracer(library: Any) -> Any:
    """Start Agent Lightning's tracer with our OTLP endpoint from the standard variables."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    tracer = library.OtelTracer()
    tracer.init_worker(0)
    tracer._get_tracer_provider().add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return tracer


def with_tracer(call: Agent, tracer: Any) -> Agent:
    """Activate the tracer in each rollout, and flush its spans before the rollout ends."""

    def traced(task: Any, rollout: dict[str, Any]) -> Any:
        context = tracer.trace_context()
        finish(context.__aenter__())
        try:
            return finish(call(task, rollout))
        finally:
            finish(context.__aexit__(None, None, None))
            tracer._get_tracer_provider().force_flush(FLUSH_MILLISECONDS)

    return traced


def finish(value: Any) -> Any:
    """Return the value, awaited in the worker's loop where it is awaitable."""
    return asyncio.get_event_loop().run_until_complete(value) if inspect.isawaitable(value) else value
