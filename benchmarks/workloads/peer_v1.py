"""A store workload run on Agent Lightning 1.0: what ours is measured beside.

Its store is its server, in memory; a rollout's record is its events, posted by HTTP one by one, as there is no request
for several. Nothing of lightningbus is imported: this file is run by the interpreter of an environment of its own ::

    python3.12 -m venv env
    env/bin/pip install agentlightning==1.0.2 httptools uvloop

Two ways to run the rollouts:

- ``server``: processes that live on, keep their connections, and do what its controller and agents ask of the server.
  No real use is faster.
- ``local``: its own local controller, which starts a process for each rollout, with the shortest poll that helps.

The peer gets what makes it fastest: no access log, a faster parser and loop. With ``--kill`` the server gets SIGKILL
when half of the rollouts are read back, and is started again at its address.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import signal
import socket
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from agentlightning.client import AgentLightningAsyncClient

POOL = 64
STARTING = 60.0
"""Seconds within which the server must answer."""
SERVE = """
import sys, uvicorn
from agentlightning.server.app import create_app
from omegaconf import OmegaConf
import agentlightning.config, pathlib
config = OmegaConf.load(pathlib.Path(agentlightning.config.__file__).with_name("server.yaml"))
uvicorn.run(create_app(config), host="127.0.0.1", port=int(sys.argv[1]), log_level="error", access_log=False)
"""
Event = dict[str, Any]


def attributes(chance: random.Random) -> dict[str, str]:
    """One span's attributes: a random tree of 1 to 3 levels with 2 to 6 keys each, its paths joined by dots; ~5 kB."""

    def word(shortest: int, longest: int) -> str:
        return "".join(chance.choices(string.ascii_letters + string.digits, k=chance.randint(shortest, longest)))

    def level(left: int, prefix: str) -> Iterator[tuple[str, str]]:
        for _ in range(chance.randint(2, 6)):
            key = prefix + word(3, 20)
            if left == 1:
                yield key, word(5, 300)
            else:
                yield from level(left - 1, f"{key}.")

    return dict(level(chance.randint(1, 3), ""))


def make_events(chance: random.Random, pool: list[dict[str, str]], name: str, most_rounds: int) -> Iterator[Event]:
    """What a rollout records: the spans and rewards of the workload."""
    rounds = chance.randint(1, most_rounds)
    named = chance.randrange(rounds)
    for number in range(rounds):
        for step in (1, 2):
            more = {"task": name} if (number, step) == (named, 1) else {}
            yield {"event_type": f"round-{number}-{step}", "data": {**chance.choice(pool), **more}}
        yield {"event_type": f"round-{number}", "data": {}}
        if chance.random() < 0.5:
            yield {"event_type": "reward", "data": {"value": chance.random()}}
    yield {"event_type": "final", "data": chance.choice(pool)}
    yield {"event_type": "reward", "data": {"value": chance.uniform(1, 2)}}


class Agent:
    """The agent of ``local``: Agent Lightning's worker makes it anew, in a process of its own."""

    def run(self) -> None:
        chance = random.Random()
        pool = json.loads(Path(os.environ["ATTRIBUTES"]).read_text())
        with httpx.Client() as client:
            for event in make_events(chance, pool, os.environ["TASK"], int(os.environ["ROUNDS"])):
                client.post(os.environ["AGL_EVENT_URL"], json=event).raise_for_status()


def play_agents(address: str, part: list[tuple[str, str]], most_rounds: int) -> None:
    """What a process of ``server`` does: start, record and end each of its rollouts."""
    chance = random.Random(os.getpid())
    pool = [attributes(chance) for _ in range(POOL)]
    with httpx.Client(base_url=address) as client:
        for rollout_id, name in part:
            patch(client, rollout_id, "running")
            for event in make_events(chance, pool, name, most_rounds):
                client.post(f"/api/rollouts/{rollout_id}/attempt/0/events", json=event).raise_for_status()
            patch(client, rollout_id, "succeeded")


def patch(client: httpx.Client, rollout_id: str, state: str) -> None:
    """A rollout's state, as a controller reports it."""
    body = {"status": {"state": state, "last_attempt_id": "0"}}
    client.patch(f"/api/rollouts/{rollout_id}", json=body).raise_for_status()


async def control(address: str, size: int, poll: float) -> None:
    """Agent Lightning's local controller, until it is cancelled."""
    import structlog
    from agentlightning.controller.local_reconciler import LocalReconciler
    from omegaconf import OmegaConf

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))  # warnings; a line a rollout else
    config = {
        "runner_type": "local",
        "agl_server": {"url": address, "agent_url": None, "key": ""},
        "local_runner": {"maximum_size": size, "poll_interval": poll},
    }
    async with AgentLightningAsyncClient(base_url=address) as api:
        await LocalReconciler(api=api, config=OmegaConf.create(config)).run()


class Server:
    """The server, on a free port of the loopback."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Until it answers."""
        command = [sys.executable, "-c", SERVE, str(self.port)]
        self.process = subprocess.Popen(command, stdout=sys.stderr)
        until = time.monotonic() + STARTING
        while True:
            try:
                httpx.get(f"{self.address}/healthz", timeout=5).raise_for_status()
                return
            except httpx.HTTPError as error:
                if self.process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError(f"the server does not answer (status {self.process.poll()})") from error
                time.sleep(0.1)

    def kill(self) -> None:
        """End it at once, as ``kill -9`` does."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()


async def read_back(api: AgentLightningAsyncClient, names: dict[str, str], until: int, poll: float) -> tuple[int, int]:
    """Read and check every rollout that ends, until so many have; how many were whole, and how many were not."""
    whole = broken = after = 0
    while whole + broken < until:
        answer = await api.get("/api/rollouts/terminal", params={"after": after})
        page = answer.raise_for_status().json()
        for item in page["items"]:
            events = (await api.get(f"/api/rollouts/{item['rollout_id']}/events")).raise_for_status().json()
            rewards = [event["data"]["value"] for event in events if event["event_type"] == "reward"]
            named = any(event["data"].get("task") == names[item["rollout_id"]] for event in events)
            is_whole = item["state"] == "succeeded" and named and bool(rewards) and 1 <= rewards[-1] <= 2
            whole, broken = whole + is_whole, broken + (not is_whole)
        after = page["next_after"]
        if not page["items"]:
            await asyncio.sleep(poll)
    return whole, broken


async def measure(options: argparse.Namespace, server: Server) -> dict[str, Any]:
    """Enqueue, run and read back."""
    with tempfile.TemporaryDirectory(prefix="peer-v1-") as place:
        pool_file = Path(place) / "attributes.json"
        pool_file.write_text(json.dumps([attributes(random.Random(number)) for number in range(POOL)]))
        variables = {"TASK": "input.name", "ROUNDS": str(options.rounds), "ATTRIBUTES": str(pool_file)}
        local = {"agent_class": "peer_v1:Agent", "env_map": variables}
        os.environ["PYTHONPATH"] = str(Path(__file__).parent)
        async with AgentLightningAsyncClient(base_url=server.address, timeout=60) as api:
            begun = time.perf_counter()
            rollouts = [{"input": {"name": f"task-{n}"}, "config": {"local": local}} for n in range(options.total)]
            answer = (await api.post("/api/rollouts", json=rollouts)).raise_for_status().json()
            names = {rollout["rollout_id"]: rollout["input"]["name"] for rollout in answer}
            controller, processes = None, []
            if options.agents == "local":
                controller = asyncio.create_task(control(server.address, options.runners, options.poll))
            else:
                parts = [list(names.items())[number :: options.runners] for number in range(options.runners)]
                fork = multiprocessing.get_context("fork")
                for part in parts:
                    processes.append(fork.Process(target=play_agents, args=(server.address, part, options.rounds)))
                    processes[-1].start()
            try:
                until = options.total // 2 if options.kill else options.total
                whole, broken = await read_back(api, names, until, options.poll)
                seconds = time.perf_counter() - begun
                kept = await count_kept(api, server, list(names)) if options.kill else None
            finally:
                if controller is not None:
                    controller.cancel()
                    await asyncio.gather(controller, return_exceptions=True)
                for process in processes:
                    process.terminate()
                    process.join()
    return {"rollouts": whole + broken, "lost": broken, "readable_after_kill": kept, "seconds": seconds}


async def count_kept(api: AgentLightningAsyncClient, server: Server, ids: list[str]) -> int:
    """Kill the server, start it again, and count the rollouts that it still has."""
    await asyncio.to_thread(server.kill)
    await asyncio.to_thread(server.start)
    answers = [await api.get(f"/api/rollouts/{id}") for id in ids]
    return sum(answer.status_code == 200 for answer in answers)


def main() -> None:
    parser = argparse.ArgumentParser(description="A store workload, run on Agent Lightning 1.0.")
    parser.add_argument("--agents", choices=("server", "local"), default="server", help="who runs the rollouts")
    parser.add_argument("--total", type=int, default=512, help="rollouts")
    parser.add_argument("--runners", type=int, default=8, help="rollouts at once")
    parser.add_argument("--rounds", type=int, default=3, help="most rounds of a rollout")
    parser.add_argument("--poll", type=float, default=0.1, help="seconds between polls")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds after which it has failed")
    parser.add_argument("--kill", action="store_true", help="kill the server half-way, and count what it has then")
    options = parser.parse_args()

    signal.signal(signal.SIGTERM, lambda *_: sys.exit("peer: told to stop"))  # so that what was started is ended too
    server = Server()
    try:
        server.start()
        result = asyncio.run(asyncio.wait_for(measure(options, server), options.timeout))
    except TimeoutError:
        sys.exit("peer: out of time")
    finally:
        server.kill()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
