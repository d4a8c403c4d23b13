"""``python -m benchmarks.workloads``: rollouts per second of the store workloads.

From the first publish until every span of every rollout has been read back from ClickHouse and checked. Until then
progress is read from the broker.
"""

import argparse
import asyncio
import time
from dataclasses import dataclass

from benchmarks.results import Result, machine, table, write
from benchmarks.system import System, runner, running, share, usage
from lightningbus.run.evaluation.publishing import publish_all
from lightningbus.schemas.tasks import Task

AGENT = "benchmarks.workloads.agent:work"
RUNNERS = 2
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
"""No think time: what the system itself can do."""


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
            size = min(size, load.batch - await system.count_unsettled())
        runs.append(f"{load.name.replace(' ', '-')}-{published}")
        tasks = make_tasks(load, runs[-1], range(published, published + size))
        await publish_all(system.at.bus, tasks, timeout=120, on_done=lambda: None)
        published += size
        if load.mode == "batch":
            await system.until_stored()
            await system.until(CHECKED, size, runs=runs[-1:])
        else:
            most = load.remaining if load.mode == "batch_partial" else load.batch - load.batch // 16
            await system.until_settled(most)
    await system.until_stored()
    await system.until(CHECKED, load.total, runs=runs)


def make_tasks(load: Workload, run_id: str, numbers: range) -> list[Task]:
    """The tasks of a run, by their numbers in the load."""
    ids = (f"{load.name}-{number}" for number in numbers)
    parameters = {"rounds": load.rounds, "sleep": load.sleep}
    return [Task(id=id, run_id=run_id, agent="default", mode="eval", input={"id": id, **parameters}) for id in ids]


def main(only: str = "") -> list[Result]:
    """Measure and write."""
    results = []
    for load in (SATURATED, *map(scaled, UPSTREAM)):
        if only and load.name not in only.split(","):
            continue
        rate, cpu = asyncio.run(measure(load))
        results.append(Result(load.name, rate, "rollouts/s", load.ceiling, note=cpu))
        print(table([results[-1].as_json()]).splitlines()[-1], flush=True)
    write("workloads", results, whole=not only)
    return results


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="names of workloads, with commas")
    options = parser.parse_args()
    print(machine())
    main(options.only)
