"""``python -m benchmarks.workloads``: rollouts per second of the store workloads, beside the peer's where one is given.

From the first publish until every span of every rollout has been read back from ClickHouse and checked.
"""

import argparse
import asyncio
import json
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.results import Result, machine, table, write
from benchmarks.system import System, runner, running, share, usage
from lightningbus.run.publishing import publish_all
from schemas.tasks import Task

PEER = Path(__file__).with_name("peer.py")
AGENT = "benchmarks.workloads.agent:work"
RUNNERS = 2
ENDED = (
    "SELECT uniqExact(rollout_id) FROM raw_attempts WHERE run_id IN {runs:Array(String)} AND resolution != 'retried'"
)
CHECKED = """
SELECT count() FROM rollouts AS r INNER JOIN
(
    SELECT execution_id, count() AS spans, countIf(attributes['task'] != '') AS named FROM spans
    WHERE run_id IN {runs:Array(String)} AND attempt > 0 GROUP BY execution_id
) AS s USING (execution_id)
WHERE r.run_id IN {runs:Array(String)} AND r.outcome = 'ok' AND r.reward BETWEEN 1 AND 2
    AND r.num_spans = s.spans AND named = 1
"""


@dataclass(frozen=True, slots=True)
class Workload:
    """Parameters by upstream's names; ``agents`` are its runners: rollouts at once."""

    name: str
    mode: str
    total: int
    batch: int
    agents: int
    rounds: int
    sleep: float
    remaining: int = 0

    @property
    def ceiling(self) -> float | None:
        """Rollouts per second if only the agents' sleeping took time; None: they do not sleep."""
        return self.agents / (self.sleep * (self.rounds / 2 + 1)) if self.sleep else None


SCALE = 16
UPSTREAM = (
    Workload("minimal", "batch", 4096, 256, 32, 6, 0.5),
    Workload("medium", "batch", 10_000, 1000, 100, 10, 0.1),
    Workload("mid-high", "batch", 20_000, 2048, 300, 6, 0.1),
    Workload("large", "batch", 50_000, 8192, 1000, 3, 0.1),
    Workload("long queue", "batch_partial", 50_000, 1024, 256, 4, 0.1, 4096),
    Workload("heavy trace", "batch_partial", 10_000, 1024, 512, 20, 1.0, 256),
    Workload("high concurrency", "single", 50_000, 2048, 256, 2, 0.1),
)
SATURATED = Workload("saturated", "batch_partial", 8000, 1000, 64, 3, 0.0, 1000)
"""No think time: what the system itself can do. The peer is given the number of runners that it is fastest with."""
PEER_SATURATED = Workload("saturated", "batch", 512, 128, 8, 3, 0.0)


def scaled(workload: Workload) -> Workload:
    """The same on a machine this size: a sixteenth of the agents and of a batch, a quarter of a sixteenth in all."""
    return Workload(
        workload.name,
        workload.mode,
        workload.total // SCALE // 4,
        max(workload.batch // SCALE, 16),
        max(workload.agents // SCALE, RUNNERS),
        workload.rounds,
        workload.sleep,
        workload.remaining // SCALE,
    )


async def measure(load: Workload) -> tuple[float, str]:
    """Rollouts per second, and who took the CPU, on a system of its own."""
    async with running("workload") as system:
        await system.runners([runner(number, AGENT, load.agents // RUNNERS) for number in range(RUNNERS)])
        await drive(system, Workload("warm-up", "batch", 200, 200, load.agents, 1, 0.0))
        before, started = usage(), time.monotonic()
        await drive(system, load)
        seconds = time.monotonic() - started
        cpu = ", ".join(f"{role} {part:.0%}" for role, part in share(before, usage()).items() if part > 0.01)
        return load.total / seconds, f"CPU: {cpu}"


async def drive(system: System, load: Workload) -> None:
    """Publish as the mode says, and wait for all of it."""
    published, runs = 0, list[str]()
    while published < load.total:
        size = min(load.batch, load.total - published)
        if load.mode == "single" and runs:
            size = min(size, load.batch - published + await system.fetch_value(ENDED, runs=runs))
        runs.append(f"{load.name.replace(' ', '-')}-{published}")
        tasks = [
            Task(id=id, run_id=runs[-1], agent="default", mode="eval", input=_input(id, load))
            for id in (f"{load.name}-{published + number}" for number in range(size))
        ]
        await publish_all(system.at.bus, tasks, timeout=120, on_done=lambda: None)
        published += size
        if load.mode == "batch":
            await system.until(ENDED, size, runs=runs[-1:])
            await system.until(CHECKED, size, runs=runs[-1:])
        elif load.mode == "batch_partial":
            await system.until(ENDED, published - load.remaining, runs=runs)
        else:
            await system.until(ENDED, published - load.batch + load.batch // 16, runs=runs)
    await system.until(ENDED, load.total, runs=runs)
    await system.until(CHECKED, load.total, runs=runs)


def _input(id: str, load: Workload) -> dict[str, object]:
    return {"id": id, "rounds": load.rounds, "sleep": load.sleep}


def peer(python: Path, load: Workload) -> float:
    """The same workload on Agent Lightning, by its environment's interpreter."""
    command = [
        python,
        PEER,
        "--mode",
        load.mode,
        "--total",
        load.total,
        "--batch",
        load.batch,
        "--runners",
        load.agents,
    ]
    command += ["--rounds", load.rounds, "--sleep", load.sleep, "--remaining", load.remaining]
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, text=True, check=True, timeout=900)
    return float(json.loads(done.stdout.splitlines()[-1])["rollouts_per_s"])


def main(only: str = "", python: Path | None = None) -> list[Result]:
    """Measure and write."""
    results = []
    for load in (SATURATED, *map(scaled, UPSTREAM)):
        if only and load.name not in only.split(","):
            continue
        # Where the load thinks, the thinking is what takes the time, on either side: compared only when asked for.
        other_one = python if load is SATURATED or only else None
        before = peer(other_one, PEER_SATURATED if load is SATURATED else load) if other_one else None
        rate, cpu = asyncio.run(measure(load))
        after = peer(other_one, PEER_SATURATED if load is SATURATED else load) if other_one else None
        other = (before + after) / 2 if before is not None and after is not None else None
        results.append(Result(load.name, rate, "rollouts/s", load.ceiling, other, cpu))
        print(table([results[-1].as_json()]).splitlines()[-1], flush=True)
    write("workloads", results, whole=not only)
    return results


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", type=Path, help="interpreter of an environment with agentlightning==0.3.0")
    parser.add_argument("--only", default="", help="names of workloads, with commas")
    options = parser.parse_args()
    print(machine())
    main(options.only, options.peer)
