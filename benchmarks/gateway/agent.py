"""Asks through its endpoint and past it in turn, and says how long each took."""

import asyncio
import random
import time
from typing import Any

import aiohttp

SESSION: list[aiohttp.ClientSession] = []


async def asks(task: dict[str, Any], endpoint: Any) -> dict[str, Any]:
    """``{"calls", "stream", "characters", "direct"}``: milliseconds of each call, through the gateways and directly."""
    through, past = [], []
    await asyncio.sleep(random.uniform(0, task["spread"]))  # agents do not ask all at the same moment
    for _ in range(task["calls"]):
        messages = [{"role": "user", "content": "x" * task["characters"]}]
        through.append(await _timed(endpoint.base_url, endpoint.api_key, messages, task["stream"]))
        past.append(await _timed(f"{task['direct']}/v1", "none", messages, task["stream"]))
    return {"reward": 1.0, "through": through, "past": past}


async def goes_on(task: dict[str, Any], endpoint: Any) -> float:
    """A conversation of so many turns, each adding as much."""
    messages: list[dict[str, str]] = []
    for turn in range(task["turns"]):
        messages.append({"role": "user", "content": f"{turn:4}" + "y" * task["characters"]})
        await _timed(endpoint.base_url, endpoint.api_key, messages, False)
        messages.append({"role": "assistant", "content": "word" * 8})
    return 1.0


async def either(task: dict[str, Any], endpoint: Any) -> Any:
    """One of the two."""
    return await (goes_on if "turns" in task else asks)(task, endpoint)


async def _timed(url: str, key: str, messages: list[dict[str, str]], stream: bool) -> float:
    if not SESSION:
        SESSION.append(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
    body = {"model": "policy", "messages": messages, "stream": stream}
    started = time.perf_counter()
    async with SESSION[0].post(
        f"{url}/chat/completions", json=body, headers={"Authorization": f"Bearer {key}"}
    ) as answer:
        await answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{url} answered {answer.status}")
    return 1e3 * (time.perf_counter() - started)
