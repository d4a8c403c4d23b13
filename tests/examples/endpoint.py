"""Endpoints for the examples' agents: any OpenAI-compatible one, and an inference node's, with scripted answers."""

import asyncio
import importlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from aiohttp import web

from lightningbus.bus.client import Bus

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
Answer = Callable[[list[dict[str, Any]]], dict[str, Any] | int]
"""From a request's messages to the assistant's message, or to a status to refuse it with."""


def module(example: str, name: str) -> ModuleType:
    """A file of an example, with those it imports beside it; other examples have files of the same names."""
    folder = EXAMPLES / example
    names = [file.stem for file in folder.glob("*.py")]
    others = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(folder))
        for name_here in names:
            sys.modules.pop(name_here, None)
        sys.modules.update(others)


def make_problems(example: str, out: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """An example's problems, as its reader makes them."""
    script = [sys.executable, str(EXAMPLES / example / "data.py"), "--out", str(out), *options]
    return subprocess.run(script, capture_output=True, text=True, check=False)


class ProgramError(subprocess.CalledProcessError):
    """A program that failed, in its own words."""

    def __str__(self) -> str:
        return f"{super().__str__()}\n{self.stderr}"


class Endpoint:
    """Answers chats as scripted: with a whole answer, or, asked as an engine, with its tokens."""

    def __init__(self, answer: Answer, reads_tools: bool = True, weight_version: int = 3) -> None:
        """``reads_tools``: only where tools are offered is a call told from text, as an engine does it."""
        self.answer = answer
        self._reads_tools = reads_tools
        self.requests: list[dict[str, Any]] = []
        self.url = ""
        self.weight_version = weight_version
        """What its tokens came from."""

    @property
    def models(self) -> list[str]:
        """The model names that were asked for, in order."""
        return [request["model"] for request in self.requests]

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        message = self.answer(body["messages"])
        if isinstance(message, int):
            return web.json_response({"error": {"message": "refused as scripted"}}, status=message)
        if self._reads_tools and not body.get("tools") and message.get("tool_calls"):
            message = {"role": "assistant", "content": json.dumps(message["tool_calls"])}
        finish = "tool_calls" if message.get("tool_calls") else "stop"
        text = (message.get("content") or "") + "".join(
            call["function"].get("arguments", "") for call in message.get("tool_calls", ())
        )
        tokens = list(f"{text}\n".encode())
        usage = {"prompt_tokens": 2, "completion_tokens": len(tokens), "total_tokens": 2 + len(tokens)}
        answer = {"id": "c", "created": 1, "model": body["model"], "usage": usage}
        if not body.get("stream"):
            choice = {"index": 0, "finish_reason": finish, "logprobs": None, "message": message}
            return web.json_response({**answer, "object": "chat.completion", "choices": [choice]})
        assert body["return_token_ids"], "only the gateway streams here"
        calls = [{**call, "index": at} for at, call in enumerate(message.get("tool_calls", ()))]
        delta = {**message, "tool_calls": calls} if calls else message
        logprobs = {"content": [{"token": chr(token), "logprob": -0.5} for token in tokens]}
        choice = {"index": 0, "finish_reason": finish, "delta": delta, "logprobs": logprobs, "token_ids": tokens}
        chunk = {**answer, "object": "chat.completion.chunk", "choices": [choice]}
        event = json.dumps({**chunk, "prompt_token_ids": [1, 2], "weight_version": self.weight_version})
        return web.Response(text=f"data: {event}\n\ndata: [DONE]\n\n", content_type="text/event-stream")

    def _routes(self, app: web.Application) -> None:
        app.router.add_post("/v1/chat/completions", self._chat)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["Endpoint"]:
        """On a free port while the block runs."""
        app = web.Application()
        self._routes(app)
        server = web.AppRunner(app)
        await server.setup()
        await web.TCPSite(server, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{server.addresses[0][1]}"
        try:
            yield self
        finally:
            await server.cleanup()

    @asynccontextmanager
    async def as_node(self, bus: Bus) -> AsyncIterator["Endpoint"]:
        """And known on the bus as an inference node."""
        async with self.serving():
            alive = {"state": "ready", "address": self.url, "model": "policy", "version": self.weight_version}
            async with bus.heartbeat("inference", f"scripted-{self.weight_version}", lambda: alive):
                yield self


async def talk(command: list[str], directory: Path, env: dict[str, str], text: object) -> Any:
    """What a program prints as JSON, given JSON on its standard input; raises `ProgramError`."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=directory,
        env=env,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, errors = await process.communicate(json.dumps(text).encode())
    if process.returncode:
        raise ProgramError(process.returncode, command, out.decode(), errors.decode())
    return json.loads(out.splitlines()[-1])
