"""Agents that share a process: async functions of a task and of where its model is. Stock client only."""

import asyncio
import logging
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from openai import AsyncOpenAI

TOGETHER: list[str] = []
POOL = ThreadPoolExecutor(1)
print("imported")
logging.basicConfig(format="%(message)s")


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


async def stuck(task, endpoint):
    """Wait for the others; then one blocks the event loop in a task, and the rest end once a file is there."""
    TOGETHER.append(task["name"])
    if task["name"] == "blocker":
        while len(TOGETHER) < task["wanted"]:
            await asyncio.sleep(0.01)
        await asyncio.gather(block(task.get("seconds", 60.0)))
    while not Path(task["until"]).exists():
        await asyncio.sleep(0.05)
    return {"reward": 1.0, "pid": os.getpid()}


async def block(seconds):
    time.sleep(seconds)  # noqa: ASYNC251


async def unlucky(task, endpoint):
    """The victim takes a second; a killer ends its process as soon as the victim is in it, until a file is there."""
    TOGETHER.append(task["name"])
    if task["name"] == "victim":
        await asyncio.sleep(1.0)
        return {"reward": 1.0, "beside": TOGETHER}
    while not Path(task["until"]).exists():
        if "victim" in TOGETHER:
            os._exit(3)
        await asyncio.sleep(0.02)
    return 1.0


def blocks(task, endpoint):
    return 1.0


async def prints(task, endpoint):
    """Prints in many ways while others do, and ends as its task says."""
    name = task["name"]
    print(name, "begins")
    TOGETHER.append(name)
    while len(TOGETHER) < task["wanted"]:
        await asyncio.sleep(0.01)
    thread = threading.Thread(target=print, args=(name, "in a thread"))
    thread.start()
    thread.join()
    loop = asyncio.get_running_loop()
    await loop.run_in_executor(None, print, name, "in the loop's pool")
    await loop.run_in_executor(POOL, print, name, "in a pool of all")
    await asyncio.to_thread(print, name, "to a thread")
    await asyncio.create_task(say(name, "in a task"))
    logging.error("%s logs", name)
    sys.stdout.buffer.write(f"{name} as bytes\n".encode())
    await (await asyncio.create_subprocess_exec("echo", f"{name} by a child")).wait()
    if task.get("chars"):
        print("x" * task["chars"])
    print(name, "ends", file=sys.stderr)
    if task.get("ends") == "late":
        await asyncio.sleep(600)
    if task.get("ends") == "badly":
        raise ValueError(name)
    return 1.0


async def say(*words):
    print(*words)
