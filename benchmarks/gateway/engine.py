"""A scripted engine behind a node's own gateway: streams as vLLM's after a fixed delay, four characters a token."""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp
import uvloop
from aiohttp import web

from lightningbus.bus.client import Bus
from lightningbus.bus.security.credentials import Credentials
from lightningbus.inference.engine.vllm_client import VllmClient
from lightningbus.inference.gateway.served_model import ServedModel
from lightningbus.inference.gateway.server import Gateway

DELAY_SECONDS = 0.5
ANSWER = 8
"""Tokens, each in an event of its own, spread over the delay as a model's are."""


async def answer(request: web.Request) -> web.StreamResponse:
    """A chat completion, as a stream or whole."""
    arrived = time.monotonic()
    body = json.loads(await request.read())
    head: dict[str, Any] = {"id": "c", "created": 1, "model": "policy"}
    ids = list(range(1, ANSWER + 1))
    prompt = tokens(body) if body.get("return_token_ids") else None
    if not body.get("stream"):
        await _until(arrived + DELAY_SECONDS)
        message = {"role": "assistant", "content": "word" * ANSWER}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return web.json_response({**head, "object": "chat.completion", "choices": [choice]})
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for place, id in enumerate(ids):
        await _until(arrived + DELAY_SECONDS * (place + 1) / ANSWER)
        fields: dict[str, Any] = {"index": 0, "delta": {"role": "assistant", "content": "word"}, "token_ids": [id]}
        fields["logprobs"] = {"content": [{"token": "word", "logprob": -0.5}]}
        fields["finish_reason"] = "stop" if place == len(ids) - 1 else None
        event = {**head, "choices": [fields], "prompt_token_ids": prompt if place == 0 else None}
        await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
    await response.write(b"data: [DONE]\n\n")
    return response


async def _until(moment: float) -> None:
    await asyncio.sleep(max(moment - time.monotonic(), 0))


def tokens(body: dict[str, Any]) -> list[int]:
    """Four characters of the conversation a token."""
    text = "".join(f"{message['role']}{message['content']}" for message in body["messages"]).encode()
    return [int.from_bytes(text[at : at + 4], "little") % 150_000 for at in range(0, len(text), 4)]


async def no_rendering(request: web.Request) -> web.Response:
    """It has no chat template."""
    return web.Response(status=404)


async def serve(bus_url: str, access: Path) -> None:
    """Until it is ended: the engine, the gateway before it, and their heartbeat."""
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_post("/v1/chat/completions", answer)
    app.router.add_post("/tokenize", no_rendering)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    engine, model = f"http://127.0.0.1:{runner.addresses[0][1]}", ServedModel("policy")
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
        Gateway(VllmClient(session, engine).forward, "127.0.0.1", 0, [model]) as gateway,
        Bus.connect(bus_url, credentials=Credentials.read(access, "inference")) as bus,
    ):
        model.version, model.state = 1, "ready"
        fields = {"state": "ready", "address": gateway.address, "model": "policy", "version": 1}
        async with bus.heartbeat(
            "inference", "scripted", lambda: {**fields, "status": {"max_model_len": 10**6, "engine": engine}}
        ):
            await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], Path(sys.argv[2])))
