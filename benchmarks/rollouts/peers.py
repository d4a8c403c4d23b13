"""``python -m benchmarks.rollouts.peers``: rollouts beside Agent Lightning, and what each loses under ``kill -9``.

One load for all: rollouts that do not think, with the spans of Agent Lightning's store benchmark, from enqueuing until
each has been read back and checked. As many agent processes on each side, one rollout at a time in each. Agents of ours
and of 0.3 have OpenTelemetry's SDK in their process; 1.0 has events by HTTP instead. Each system runs with each number
of processes, in turn with the others, several rounds. Its figure is its best run: other programs only slow it down.
"""

import argparse
import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from clickhouse_connect.driver.exceptions import Error as ClickHouseError

from benchmarks.results import Result, machine, table, write
from benchmarks.system import POLL_SECONDS, System, runner, running, usage
from benchmarks.workloads.__main__ import CHECKED, RUNNERS, Workload, drive, make_tasks
from lightningbus.run.evaluation.publishing import publish_all

HERE = Path(__file__).resolve().parents[1] / "workloads"
AGENT = "benchmarks.workloads.otel_agent:work"
PROCESSES = (4, 8, 16)
NUM_ROUNDS = 2
OURS, V0, V1, AGENTS = "lightningbus", "0.3.0", "1.0.2", "agents alone"
SPAN_ROUNDS = 3
"""Of a rollout, at most: 3 spans for each round, a reward in half of them, and 2 spans at the end."""
NUM_OURS, NUM_WARM_UP, NUM_KILLED = 2000, 200, 1000
BATCH = 1000
KILLED_PROCESSES = 8
RECOVERY_SECONDS = 120.0
ENDED = "SELECT uniqExact(rollout_id) FROM raw_attempts WHERE run_id = 'killed' AND resolution != 'retried'"
SERVERS = ("nats-server", " store ")
"""In the command lines of the processes that are killed on our side."""

Outcome = dict[str, Any]
"""``rollouts`` that ended, those of them that are ``lost``, ``seconds``; after a kill, ``readable_after_kill``."""


async def start_agents(system: System, processes: int) -> None:
    """Runners with so many agent processes in all, each of which has run a rollout."""
    share = processes // RUNNERS
    await system.runners([runner(n, AGENT, share, max_concurrent_per_process=1) for n in range(RUNNERS)])
    await drive(system, Workload("warm-up", "batch", NUM_WARM_UP, NUM_WARM_UP, processes, 1, 0.0))


async def measure_ours(processes: int) -> Outcome:
    """On a system of its own; raises TimeoutError if a rollout or a span is missing."""
    async with running("peers") as system:
        await start_agents(system, processes)
        before, started = usage(), time.monotonic()
        await drive(system, Workload("beside", "batch_partial", NUM_OURS, BATCH, processes, SPAN_ROUNDS, 0.0, BATCH))
        seconds, after = time.monotonic() - started, usage()
        spent = {role: 1e3 * (after[role][0] - before.get(role, (0.0, 0.0))[0]) / NUM_OURS for role in after}
        return {"rollouts": NUM_OURS, "lost": 0, "seconds": seconds, "cpu_ms": spent}


def measure_agents(processes: int) -> Outcome:
    """Agents alone, whose spans go to a server that keeps nothing: no system that they report to can exceed it."""
    share = NUM_OURS // processes
    command = [sys.executable, "-m", "benchmarks.workloads.otel_agent", str(share), str(SPAN_ROUNDS)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    started: list[subprocess.Popen[str]] = []
    try:
        started.append(subprocess.Popen([sys.executable, "-m", "benchmarks.workloads.sink"], **pipes))
        env = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": _read_line(started[0])}
        # OpenTelemetry warns of each attribute beyond its limit.
        started += [subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL, **pipes) for _ in range(processes)]
        agents = started[1:]
        for agent in agents:
            _read_line(agent)
        began = time.monotonic()
        for agent in agents:
            assert agent.stdin is not None
            agent.stdin.write("go\n")
            agent.stdin.flush()
        statuses = [agent.wait() for agent in agents]
        seconds = time.monotonic() - began
    finally:
        for process in started:
            process.kill()
            process.wait()
    if any(statuses):
        raise RuntimeError(f"agents ended with {statuses}")
    return {"rollouts": share * processes, "lost": 0, "seconds": seconds}


def _read_line(process: "subprocess.Popen[str]") -> str:
    """Raises RuntimeError if it ends without one."""
    assert process.stdout is not None
    if line := process.stdout.readline().strip():
        return line
    raise RuntimeError(f"{process.args!r} ended with {process.wait()}")


async def kill_ours() -> Outcome:
    """SIGKILL for broker and store when half of the rollouts have ended; how many are whole when all have."""
    async with running("peers") as system:
        await start_agents(system, KILLED_PROCESSES)
        load = Workload("killed", "batch", NUM_KILLED, NUM_KILLED, KILLED_PROCESSES, SPAN_ROUNDS, 0.0)
        await publish_all(
            system.at.bus, make_tasks(load, "killed", range(NUM_KILLED)), timeout=120, on_done=lambda: None
        )
        await system.until(ENDED, NUM_KILLED // 2)
        for process in psutil.Process().children(recursive=True):
            if any(mark in " ".join(process.cmdline()) for mark in SERVERS):
                os.kill(process.pid, signal.SIGKILL)
        return {"rollouts": NUM_KILLED, "readable_after_kill": await count_whole(system, "killed", NUM_KILLED)}


async def count_whole(system: System, run_id: str, until: int) -> int:
    """Rollouts that are there with every span, when so many are or after a while; the store may be starting."""
    whole, ends_at = 0, time.monotonic() + RECOVERY_SECONDS
    while whole < until and time.monotonic() < ends_at:
        try:
            whole = int(await system.fetch_value(CHECKED, runs=[run_id]))
        except (ClickHouseError, OSError):
            await asyncio.sleep(POLL_SECONDS)
        await asyncio.sleep(POLL_SECONDS)
    return whole


def run_peer(python: Path, script: str, *options: object) -> Outcome:
    """One run of a peer, by its environment's interpreter."""
    command = [str(python), str(HERE / script), *map(str, options)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        raise RuntimeError(f"{script} ended with status {done.returncode}: {done.stderr[-2000:]}")
    outcome: Outcome = json.loads(done.stdout.splitlines()[-1])
    return outcome


def run_all(runs: dict[str, Callable[[int], Outcome]]) -> dict[str, dict[int, list[Outcome]]]:
    """The outcomes of each system by number of processes; a round has each system once with each number."""
    outcomes: dict[str, dict[int, list[Outcome]]] = defaultdict(lambda: defaultdict(list))
    for number in range(NUM_ROUNDS):
        for processes in PROCESSES:
            for name, run in runs.items():
                outcome = run(processes)
                outcomes[name][processes].append(outcome)
                print(f"round {number}, {processes} processes, {name}: {rate(outcome):.1f} rollouts/s", flush=True)
    return outcomes


def rate(outcome: Outcome) -> float:
    """Rollouts per second that were recorded whole."""
    return float((outcome["rollouts"] - outcome["lost"]) / outcome["seconds"])


def fastest(by_processes: dict[int, list[Outcome]]) -> tuple[int, float]:
    """The number of processes with the best run, and its rate."""
    best = {processes: max(map(rate, outcomes)) for processes, outcomes in by_processes.items()}
    return max(best.items(), key=lambda item: item[1])


def describe(outcomes: dict[int, list[Outcome]]) -> str:
    """For the note of a result."""
    processes, _ = fastest(outcomes)
    ended = sum(outcome["rollouts"] for runs in outcomes.values() for outcome in runs)
    lost = sum(outcome["lost"] for runs in outcomes.values() for outcome in runs)
    rates = sorted(map(rate, outcomes[processes]))
    return f"{rates[0]:.0f} to {rates[-1]:.0f} with {processes} processes, {lost} of {ended:,} lost"


def compare(outcomes: dict[str, dict[int, list[Outcome]]], peer: str, about: str = "") -> Result:
    """Rollouts per second of ours beside a peer's; the ceiling is what agents alone do."""
    value, ceiling, other = (fastest(outcomes[name])[1] for name in (OURS, AGENTS, peer))
    note = f"here {describe(outcomes[OURS])}; there {describe(outcomes[peer])}; ceiling: our agents alone"
    return Result(f"beside {peer}{about}", value, "rollouts/s", ceiling, peer=other, note=note)


def cpu_per_rollout(outcomes: dict[int, list[Outcome]]) -> Result:
    """Milliseconds of CPU that a rollout took in our best run, by role."""
    best = max(itertools.chain(*outcomes.values()), key=rate)
    by_role = sorted(best["cpu_ms"].items(), key=lambda item: -item[1])
    note = ", ".join(f"{role} {spent:.1f}" for role, spent in by_role if spent >= 0.05)
    return Result("CPU of a rollout, ours", sum(best["cpu_ms"].values()), "ms", note=note)


def percent_lost(outcome: Outcome) -> float:
    """Of the rollouts of a run whose servers were killed."""
    return 100.0 * (1 - outcome["readable_after_kill"] / outcome["rollouts"])


def measure(v0: Path, v1: Path) -> list[Result]:
    """Both peers and ours."""
    outcomes = run_all(
        {
            V0: lambda processes: run_peer(v0, "peer.py", "--runners", processes),
            OURS: lambda processes: asyncio.run(measure_ours(processes)),
            V1: lambda processes: run_peer(v1, "peer_v1.py", "--runners", processes),
            AGENTS: measure_agents,
        }
    )
    local = [run_peer(v1, "peer_v1.py", "--agents", "local", "--runners", 4, "--total", 64) for _ in range(NUM_ROUNDS)]
    ours = percent_lost(asyncio.run(kill_ours()))
    kill = ("--kill", "--runners", KILLED_PROCESSES)
    lost_v0, lost_v1 = percent_lost(run_peer(v0, "peer.py", *kill)), percent_lost(run_peer(v1, "peer_v1.py", *kill))
    case = "rollouts lost when the servers are killed by kill -9"
    return [
        compare(outcomes, V0),
        compare(outcomes, V1, ", its server alone"),
        cpu_per_rollout(outcomes[OURS]),
        Result(
            f"{V1} with its local controller",
            None,
            "rollouts/s",
            peer=max(map(rate, local)),
            note="a process for each rollout",
        ),
        Result(f"{case}, beside {V0}", ours, "%", peer=lost_v0),
        Result(f"{case}, beside {V1}", ours, "%", peer=lost_v1),
    ]


def main(v0: Path, v1: Path) -> list[Result]:
    """Measure and write."""
    results = measure(v0, v1)
    write("peers", results)
    print(table(result.as_json() for result in results))
    return results


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--peer", type=Path, required=True, help="interpreter of an environment with agentlightning 0.3"
    )
    parser.add_argument(
        "--peer-v1", type=Path, required=True, help="interpreter of an environment with agentlightning 1.0"
    )
    options = parser.parse_args()
    print(machine())
    main(options.peer, options.peer_v1)
