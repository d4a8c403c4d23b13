"""Runs a Python function in the user's own interpreter: Python 3.8 or newer, standard library only, nothing of ours.

``python worker_script.py exclusive|shared|reward module:function [DIRECTORY]`` imports the function from the working
directory, or from the one named. It reads one JSON object per line from its standard input and writes one per line to
its standard output, so that a sandbox may stand between. First it writes ``{"ready": true, "concurrent": ...}``, with
"concurrent" true for an async function, or ``{"error": "..."}``. For each ``{"job": n, "arguments": [...]}`` it writes
``{"job": n, "value": ...}`` or ``{"job": n, "error": "...", "traceback": "..."}``.

- ``exclusive``: the agent runs one rollout at a time. With Agent Lightning, it may be a class or an object too; the
  job's ``"rollout"`` has the fields that `agent_lightning` needs.
- ``shared``: an async agent, which runs many jobs at once. Its last argument is the job's ``{"endpoint": {...}}``, the
  address of its model. ``{"cancel": n}`` ends a job. An answer has the end of what its job printed as ``"output"``.
  ``{"blocking": n}`` reports that a job blocks all others, and ``{"blocking": null}`` that none does any more.
- ``reward``: a reward function. An async one runs many jobs at once too; any other one runs in the main thread, and may
  start an event loop there.
"""

from __future__ import annotations

import asyncio
import decimal
import importlib
import importlib.util
import inspect
import json
import numbers
import os
import sys
import threading
import traceback
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, TextIO

MAX_LINE = 64 * 1024 * 1024
MAX_FIELDS = 300
"""Characters of the names of a task's fields in an error."""
PR_SET_DUMPABLE = 4
PARAMETERS = {"shared": ("task", "endpoint"), "reward": ("input", "result")}
"""Arguments of a function by mode; an exclusive agent gets its task."""


def main() -> None:
    mode, target = sys.argv[1], sys.argv[2]
    # The working directory, or the one named; it was this script's own, whose modules are not the agent's business.
    sys.path[0] = sys.argv[3] if len(sys.argv) > 3 else ""
    requests = os.fdopen(os.dup(0), "rb")  # a copy is closed in whatever program the agent starts
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8", newline="\n")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # the agent's prints go to its standard error
    capture = load_beside("output_capture") if mode == "shared" else None
    watch = load_beside("loop_watch") if mode == "shared" else None
    try:
        if mode == "reward":
            deny_ptrace()
        if capture is not None:
            capture.install()
        function = load(target)
        if mode == "exclusive":
            function = accept_rollout(function)
        else:
            check_parameters(function, PARAMETERS[mode])
        if mode == "shared" and not is_async(function):
            raise TypeError(f"{target} is no async function, so it cannot run many rollouts in one process")
    except BaseException as error:
        send(replies, {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()})
        return
    send(replies, {"ready": True, "concurrent": is_async(function)})
    if mode == "shared" or is_async(function):
        asyncio.run(serve_shared(requests, replies, function, capture, watch))
    else:
        serve_alone(requests, replies, function, mode)


def serve_alone(requests: BinaryIO, replies: TextIO, function: Any, mode: str) -> None:
    """Run one job after the other in the main thread."""
    loop = asyncio.new_event_loop()  # one for all rollouts: a client made at import time keeps its connections
    us = os.getpid()
    for line in requests:
        job = json.loads(line)
        if "cancel" in job:  # The job has ended since, or a second one could not have been read.
            continue
        if loop.is_closed():
            loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)  # asyncio.run in the job before has removed it
        answer = run(loop, function, [*job["arguments"], *([job.get("rollout")] if mode == "exclusive" else [])])
        if mode == "exclusive":
            flush_spans()
        if os.getpid() != us:  # the agent forked, and this is its child: the answer is its parent's to give
            os._exit(0)
        send(replies, dict(answer, job=job["job"]))


def deny_ptrace() -> None:
    """Let no other process of this user, the agent's for one, look into this one or trace it; Linux only."""
    if sys.platform.startswith("linux"):
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0)


async def serve_shared(
    incoming: BinaryIO, outgoing: TextIO, function: Any, capture: Any = None, watch: Any = None
) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=MAX_LINE)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), incoming)
    writer, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, outgoing)
    jobs: dict[int, asyncio.Task[None]] = {}
    writing = threading.Lock()

    async def serve(request: dict[str, Any]) -> None:
        if watch is not None:
            watch.JOB.set(request["job"])
        output = capture.begin() if capture is not None else None
        answer = await run_one(function, request)
        del jobs[request["job"]]
        if output is not None:
            answer["output"] = output.take()
        line = json.dumps(dict(answer, job=request["job"]), default=to_json).encode() + b"\n"
        with writing:
            writer.write(line)

    def report(blocking: int | None) -> bool:
        """Write past the blocked loop, unless a part of an answer is still to be written; return whether it was."""
        with writing:
            try:
                if writer.get_write_buffer_size():
                    return False
                os.write(outgoing.fileno(), json.dumps({"blocking": blocking}).encode() + b"\n")
            except (OSError, ValueError):  # full, or closed
                return False
        return True

    if watch is not None:
        watch.LoopWatch(report).start()
    while True:
        line = await reader.readline()
        if not line:
            return
        request = json.loads(line)
        if "cancel" in request:
            if request["cancel"] in jobs:
                jobs[request["cancel"]].cancel()
        else:
            jobs[request["job"]] = asyncio.ensure_future(serve(request))


async def run_one(function: Any, request: dict[str, Any]) -> dict[str, Any]:
    endpoint = [types.SimpleNamespace(**request["endpoint"])] if "endpoint" in request else []
    try:
        value = function(*request["arguments"], *endpoint)
        answer = {"value": await value if inspect.isawaitable(value) else value}
        json.dumps(answer, default=to_json)
        return answer
    except asyncio.CancelledError:
        return {"error": "cancelled"}
    except BaseException as error:
        return {"error": describe(error, request["arguments"]), "traceback": traceback.format_exc()}


def load(target: str) -> Any:
    module, _, path = target.partition(":")
    function = importlib.import_module(module)
    for name in path.split("."):
        function = getattr(function, name)
    return function


def is_async(function: Any) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(function.__call__)


def accept_rollout(agent: Any) -> Any:
    """Turn an agent into a function of (task, rollout); raise TypeError where it could not be called."""
    if isinstance(agent, type) or "agentlightning" in sys.modules:
        adapter = load_beside("agent_lightning")
        if adapter.is_adaptable(agent):
            return adapter.adapt(agent, check_parameters)
    check_parameters(agent, ("task",))
    return lambda task, rollout: agent(task)


def load_beside(name: str) -> Any:
    """Load a module that lies beside this script, which is on no path."""
    path = Path(__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"lightningbus_{name}", path)
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    return module


def check_parameters(function: Any, positional: Sequence[str], named: Sequence[str] = ()) -> None:
    """Raise TypeError unless a call with these arguments fills every parameter that has no default."""
    if not callable(function):
        raise TypeError(f"it is not a function, but of type {type(function).__name__}")
    try:
        signature = inspect.signature(function, follow_wrapped=False)  # a decorator may fill what it wraps
    except (TypeError, ValueError):  # written in C: it does not say what it takes
        return
    call = f"the call is {getattr(function, '__name__', type(function).__name__)}({', '.join([*positional, *named])})"
    try:
        filled = signature.bind_partial(*positional, **dict.fromkeys(named)).arguments
    except TypeError as error:
        raise TypeError(f"{error}: {call}") from None
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    for name, parameter in signature.parameters.items():
        if name not in filled and parameter.default is parameter.empty and parameter.kind not in variadic:
            raise TypeError(f"nothing fills the parameter {name!r}: {call}")


def run(loop: asyncio.AbstractEventLoop, function: Any, arguments: list[Any]) -> dict[str, Any]:
    try:
        value = function(*arguments)
        answer = {"value": loop.run_until_complete(value) if inspect.isawaitable(value) else value}
        json.dumps(answer, default=to_json)
        return answer
    except BaseException as error:  # SystemExit and KeyboardInterrupt too: the agent's end is not ours
        return {"error": describe(error, arguments), "traceback": traceback.format_exc()}


def describe(error: BaseException, arguments: Sequence[Any]) -> str:
    """Describe an error with its type; with the fields of the task too, where it is about one that the task lacks."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    task = arguments[0] if arguments else None
    if type(error) is not KeyError or not isinstance(task, dict) or error.__traceback__ is None:
        return text
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    has_task = any(value is task for value in frame.f_locals.values())
    if not has_task or any(name in error.args for name in task):
        return text
    fields = ", ".join(map(str, task))[:MAX_FIELDS]
    return f"{text}: the task has the fields {fields}" if task else f"{text}: the task has no fields"


def flush_spans() -> None:
    """Flush spans, which are exported in the background, before this rollout ends.

    LangSmith's client hands its spans to OpenTelemetry from its own thread, so it goes first.
    """
    langsmith, trace = sys.modules.get("langsmith.run_trees"), sys.modules.get("opentelemetry.trace")
    client = getattr(langsmith, "_CLIENT", None) if os.environ.get("LANGSMITH_OTEL_ENABLED") else None
    flush = getattr(trace and trace.get_tracer_provider(), "force_flush", None)
    try:
        if client is not None:
            client.flush(timeout=5)
        if flush is not None:
            flush(5000)
    except Exception:
        traceback.print_exc()


def to_json(value: Any) -> Any:
    """Convert a number of another library, such as a NumPy scalar or an array without dimensions, to Python's own."""
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        item = value.item()
        if type(item) is not type(value):  # NumPy's longest floats return themselves
            return item
    if isinstance(value, numbers.Rational) and value.denominator == 1:
        numerator: Any = value.numerator
        return int(numerator)
    if isinstance(value, (numbers.Real, decimal.Decimal)):
        return float(value)
    raise TypeError(f"a {type(value).__name__} is not JSON")


def send(lines: TextIO, message: dict[str, Any]) -> None:
    lines.write(json.dumps(message, default=to_json) + "\n")
    lines.flush()


if __name__ == "__main__":
    main()
