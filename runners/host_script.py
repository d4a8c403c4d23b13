"""Runs a Python agent in the user's own interpreter: Python 3.8 or newer, standard library only, nothing of ours.

``python host_script.py many|one module:function [module:reward]``: one JSON object per line to its standard input and
from its standard output, so that whatever hands these on may stand between. First it says ``{"ready": true}`` or
``{"error": "...", "target": "..."}``, the target being what cannot be loaded; then, for each ``{"job": n, "input":
...}``, ``{"job": n, "value": ..., "reward": ...}`` or ``{"job": n, "error": "...", "traceback": "..."}``. With
``many`` it is an async function of the input and of where its model is, the job's ``{"endpoint": {...}}``; jobs run
side by side, and ``{"cancel": n}`` ends one.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import numbers
import os
import sys
import traceback
import types
from typing import Any, BinaryIO, TextIO

MAX_LINE = 64 * 1024 * 1024


def main() -> None:
    many, target = sys.argv[1] == "many", sys.argv[2]
    reward_target = sys.argv[3] if len(sys.argv) > 3 else ""
    sys.path[0] = ""  # the working directory; it was this script's own, whose modules are not the agent's business
    asked = os.fdopen(os.dup(0), "rb")  # a copy is closed in whatever program the agent starts
    said = os.fdopen(os.dup(1), "w", encoding="utf-8", newline="\n")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # what the agent prints goes where its errors go
    loading = target
    try:
        agent = load(target)
        loading = reward_target or target
        reward = load(reward_target) if reward_target else None
        loading = target
        if many and not inspect.iscoroutinefunction(agent):
            raise TypeError(f"{target} is no async function, so it cannot run many rollouts in one process")
    except BaseException as error:
        problem = {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
        say(said, dict(problem, target=loading))
        return
    say(said, {"ready": True})
    if many:
        asyncio.run(serve_many(asked, said, agent, reward))
        return
    loop = asyncio.new_event_loop()  # one for all rollouts: a client made at import time keeps its connections
    asyncio.set_event_loop(loop)
    us = os.getpid()
    for line in asked:
        job = json.loads(line)
        answer = run(loop, agent, reward, job["input"])
        if os.getpid() != us:  # the agent forked, and this is its child: the answer is its parent's to give
            os._exit(0)
        say(said, dict(answer, job=job["job"]))


async def serve_many(incoming: BinaryIO, outgoing: TextIO, agent: Any, reward: Any) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=MAX_LINE)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), incoming)
    writer, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, outgoing)
    jobs: dict[int, asyncio.Task[None]] = {}

    async def serve(asked: dict[str, Any]) -> None:
        answer = await run_one(agent, reward, asked)
        del jobs[asked["job"]]
        writer.write(json.dumps(dict(answer, job=asked["job"]), default=plain_number).encode() + b"\n")

    while True:
        line = await reader.readline()
        if not line:
            return
        asked = json.loads(line)
        if "cancel" in asked:
            if asked["cancel"] in jobs:
                jobs[asked["cancel"]].cancel()
        else:
            jobs[asked["job"]] = asyncio.ensure_future(serve(asked))


async def run_one(agent: Any, reward: Any, asked: dict[str, Any]) -> dict[str, Any]:
    try:
        value = await agent(asked["input"], types.SimpleNamespace(**asked["endpoint"]))
        answer = {"value": value}
        if reward is not None:
            given = reward(asked["input"], value)
            answer["reward"] = await given if inspect.isawaitable(given) else given
            answer["value"] = value if is_json(value) else repr(value)
        json.dumps(answer, default=plain_number)
        return answer
    except asyncio.CancelledError:
        return {"error": "cancelled"}
    except BaseException as error:
        return {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}


def load(target: str) -> Any:
    module, _, path = target.partition(":")
    found = importlib.import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    if not callable(found):
        raise TypeError(f"{target} is not a function")
    return found


def run(loop: asyncio.AbstractEventLoop, agent: Any, reward: Any, task: Any) -> dict[str, Any]:
    try:
        value = call(loop, agent, task)
        answer = {"value": value}
        if reward is not None:
            answer["reward"] = call(loop, reward, task, value)
            answer["value"] = value if is_json(value) else repr(value)
        flush_spans()
        json.dumps(answer, default=plain_number)
        return answer
    except BaseException as error:  # SystemExit and KeyboardInterrupt too: the agent's end is not ours
        flush_spans()
        return {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}


def call(loop: asyncio.AbstractEventLoop, function: Any, *arguments: Any) -> Any:
    result = function(*arguments)
    return loop.run_until_complete(result) if inspect.isawaitable(result) else result


def flush_spans() -> None:
    """Spans are exported in the background: what belongs to this rollout must leave before it ends.

    LangSmith's client gives its spans to OpenTelemetry from a thread of its own, so it goes first.
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


def is_json(value: Any) -> bool:
    try:
        json.dumps(value, default=plain_number)
    except (TypeError, ValueError):
        return False
    return True


def plain_number(value: Any) -> float:
    if isinstance(value, numbers.Real):
        return float(value)
    raise TypeError(f"a {type(value).__name__} is not JSON")


def say(lines: TextIO, message: dict[str, Any]) -> None:
    lines.write(json.dumps(message, default=plain_number) + "\n")
    lines.flush()


if __name__ == "__main__":
    main()
