"""An agent whose prompt lacks two rules, an engine that follows rules, and a model that finds them in failures."""

import json
import math
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lightningbus.bus.client import Bus
from tests.agents.prompted import NUMBERS
from tests.examples.endpoint import Endpoint
from tests.polling import HANG_SECONDS
from tests.runners.conftest import running
from tests.store.conftest import Start, StoreProcess
from tests.store.conftest import start_store as start_store

SIGN, ROUND = "Leave out the sign.", "Round up."
TASKS = ("1", "2.5", "-3", "4", "0.5", "-6.5", "7", "-8", "9.25")
HELDOUT = ("10", "-11", "12.5", "-13.5")


def follow(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """What the engine answers: the number, by the rules of the system message."""
    rules, number = messages[0]["content"], float(messages[-1]["content"])
    number = abs(number) if SIGN in rules else number
    return {"role": "assistant", "content": str(math.ceil(number)) if ROUND in rules else f"{number:g}"}


def reflect(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """What the reflecting model answers: one rule more if a failure says which, else a useless one."""
    request = messages[-1]["content"]
    prompt = request.split("```")[1].strip()
    reasons = {"it has a sign": SIGN, "it is not rounded up": ROUND}
    rule = next((rule for why, rule in reasons.items() if why in request and rule not in prompt), "Be brief.")
    return {"role": "assistant", "content": f"The rule is missing:\n```\n{prompt} {rule}\n```"}


@dataclass
class World:
    """A bus with a store, a node, a reflecting model, and a runner of each agent."""

    bus: Bus
    url: str
    store: StoreProcess
    node: Endpoint
    reflecting: Endpoint

    def write(self, directory: Path, run: str, **optimize: Any) -> Path:
        """The run file of an optimisation of agent ``run``."""
        fields = {"name": run, "bus": {"url": self.url}}
        return write_run_file(directory, run, f"{self.reflecting.url}/v1", fields, **{"agent": run, **optimize})


def write_run_file(directory: Path, prompt: str, reflecting: str, fields: dict[str, Any], **optimize: Any) -> Path:
    """A run file with these sections and ``optimize``, and its tasks beside it."""
    settings = {
        "prompts": {prompt: {"text": NUMBERS}},
        "tasks": str(_write_tasks(directory / "tasks.jsonl", TASKS)),
        "heldout": str(_write_tasks(directory / "heldout.jsonl", HELDOUT)),
        "budget": 120,
        "deadline": HANG_SECONDS,
        "reflection": {"url": reflecting, "model": "reader"},
        **optimize,
    }
    path = directory / f"{prompt}.yaml"
    path.write_text(json.dumps({**fields, "optimize": settings}))
    return path


def _write_tasks(path: Path, numbers: tuple[str, ...]) -> Path:
    lines = [
        {"id": f"n{number}", "input": {"number": number, "right": str(math.ceil(abs(float(number))))}}
        for number in numbers
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@asynccontextmanager
async def world_of(
    bus: Bus, url: str, start_store: Start, *agents: str, entrypoint: str = "prompted:notes"
) -> AsyncIterator[World]:
    """With a runner of each agent, while the block runs."""
    store = start_store(url, flush_interval_seconds=0.05)
    async with AsyncExitStack() as exits:
        node = await exits.enter_async_context(Endpoint(follow).as_node(bus))
        reflecting = await exits.enter_async_context(Endpoint(reflect).serving())
        for agent in agents:
            await exits.enter_async_context(
                running(bus, entrypoint=entrypoint, agent_name=agent, id=agent, concurrency=1)
            )
        yield World(bus, url, store, node, reflecting)


@pytest.fixture
async def world(bus: Bus, nats_url: str, start_store: Start) -> AsyncIterator[World]:
    """One with two agents, which differ by name only."""
    async with world_of(bus, nats_url, start_store, "steady", "killed") as built:
        yield built
