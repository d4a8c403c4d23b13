"""Tokens a second of a node's vLLM, asked on its own socket, and through the node's gateway."""

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import psutil

from benchmarks.gpu.context import Context
from benchmarks.gpu.sizes import Scale, Size
from benchmarks.results import Result
from lightningbus.bus.security.secrets import bearer_header, read_key
from lightningbus.inference.engine.vllm_client import URL

ROUNDS = 2
"""Of each way, in turns; the faster counts."""
ENGINE_SHARE = 0.85
"""Of the GPU's memory."""
DONE = b"data: [DONE]"
Client = Callable[[], aiohttp.ClientSession]


class GenerationError(Exception):
    """An answer was no stream of as many tokens as were asked for."""


def measure(context: Context, size: Size) -> None:
    """Both ways at every concurrency: the value is through the gateway, the ceiling vLLM alone."""
    asyncio.run(_measure(context, size))


async def _measure(context: Context, size: Size) -> None:
    model, scale = context.model(size), context.scale
    vocabulary = json.loads((model / "config.json").read_text())["vocab_size"]
    async with context.node(model, scale.engine(ENGINE_SHARE)) as (at, node):
        assert at.keys.inference_api_key is not None, "a run with a bus of its own has one"
        key, socket = bearer_header(read_key(at.keys.inference_api_key)), find_engine_socket()

        def through_gateway() -> aiohttp.ClientSession:
            return aiohttp.ClientSession(node.address, connector=aiohttp.TCPConnector(limit=0), headers=key)

        def to_engine() -> aiohttp.ClientSession:
            return aiohttp.ClientSession(URL, connector=aiohttp.UnixConnector(str(socket), limit=0))

        # vLLM compiles for every shape that it meets the first time.
        await measure_rate(to_engine, scale, vocabulary, max(scale.concurrencies), 0)
        for number, streams in enumerate(scale.concurrencies, 1):
            rates: dict[Client, list[float]] = {to_engine: [], through_gateway: []}
            for turn in range(ROUNDS):
                for place, (client, measured) in enumerate(rates.items()):
                    seed = 1000 * (2 * ROUNDS * number + 2 * turn + place)  # no prompt comes again: they are cached
                    measured.append(await measure_rate(client, scale, vocabulary, streams, seed))
            alone, behind = (max(rates[client]) for client in (to_engine, through_gateway))
            case = f"{context.title(size)}, streams at once: {streams}"
            context.report(Result(case, behind, "tokens/s", alone, note="beside it: vLLM without the gateway"))


async def measure_rate(client: Client, scale: Scale, vocabulary: int, streams: int, seed: int) -> float:
    """Tokens a second of so many answers at once, prompts included in the time; raises `GenerationError`."""
    async with client() as http:
        bodies = [make_body(scale, vocabulary, seed + number) for number in range(streams)]
        started = time.monotonic()
        await asyncio.gather(*(_read_stream(http, body, scale.answer_tokens) for body in bodies))
        return streams * scale.answer_tokens / (time.monotonic() - started)


def make_body(scale: Scale, vocabulary: int, seed: int) -> dict[str, Any]:
    """A completion as runners ask for it, of a random prompt. Pure."""
    prompt = np.random.default_rng(seed).integers(10, vocabulary, scale.prompt_tokens).tolist()
    body = {"model": "policy", "prompt": prompt, "max_tokens": scale.answer_tokens, "ignore_eos": True}
    return body | {"logprobs": 0, "stream": True, "return_token_ids": True, "temperature": 1.0}


async def _read_stream(http: aiohttp.ClientSession, body: dict[str, Any], num_tokens: int) -> None:
    """Read to the end without parsing every event, which would be this process's time, not the engine's."""
    body = body | {"stream_options": {"include_usage": True}}
    async with http.post("/v1/completions", json=body, timeout=aiohttp.ClientTimeout(total=None)) as response:
        if response.status != 200:
            raise GenerationError(f"{response.status}: {(await response.text())[:200]}")
        last = b""
        async for chunk in response.content.iter_any():
            last = (last + chunk)[-4096:]
    events = [line for line in last.split(b"\n") if line.startswith(b"data: {") and b'"usage":{' in line]
    if DONE not in last or not events:
        raise GenerationError(f"the stream ended early: {last[-200:]!r}")
    num_answered = json.loads(events[-1][6:])["usage"]["completion_tokens"]
    if num_answered != num_tokens:
        raise GenerationError(f"an answer has {num_answered} tokens, not {num_tokens}")


def find_engine_socket() -> Path:
    """The socket of the vLLM server that a node below this process started; raises `GenerationError`."""
    for process in psutil.Process().children(recursive=True):
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        if "--uds" in words:
            return Path(words[words.index("--uds") + 1])
    raise GenerationError("no vLLM server below this process")
