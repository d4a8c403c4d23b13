"""Agents that share a process: async functions of a task and of where its model is. Stock client only."""

import asyncio
import os
from pathlib import Path

from openai import AsyncOpenAI

TOGETHER: list[str] = []


async def asks(task, endpoint):
    client = AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key, max_retries=0)
    messages = [{"role": "user", "content": task["name"]}]
    answer = await client.chat.completions.create(model="policy", messages=messages)
    await client.close()
    return {"reward": float(answer.choices[0].message.content == "xx"), "pid": os.getpid()}


async def meets(task, endpoint):
    """Ends when as many as it waits for are here at the same time."""
    TOGETHER.append(task["name"])
    while len(TOGETHER) < task["wanted"]:
        await asyncio.sleep(0.01)
    return 1.0


async def sleeps(task, endpoint):
    await asyncio.sleep(task.get("seconds", 0.0))
    return 1.0


async def deaf(task, endpoint):
    """Cannot be cancelled; ends once a file is there."""
    while not Path(task["until"]).exists():
        try:
            await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            continue
    return 1.0


def blocks(task, endpoint):
    return 1.0
