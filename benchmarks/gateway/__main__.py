"""``python -m benchmarks.gateway``: latency added to a model call, and memory of a long conversation."""

import asyncio
import json
import signal
import sys

import uvloop

from benchmarks.gateway.engine import DELAY_SECONDS
from benchmarks.results import Result, machine, table, write
from benchmarks.rollouts.latency import percentiles
from benchmarks.system import System, runner, running, usage
from lightningbus.common.processes.subprocesses import spawn, terminate
from lightningbus.run.evaluation.publishing import publish_all
from lightningbus.schemas.tasks import Task
from lightningbus.tasks.task_publisher import TaskPublisher

AGENT = "benchmarks.gateway.agent:either"
CASES = [(1, 1, False), (1, 1, True), (32, 1, False), (32, 1, True), (256, 1, False), (1, 64, False), (32, 64, False)]
"""Calls at once, thousands of tokens of context, streamed."""
CALLS = {1: 16, 32: 8, 256: 3}
"""Of each rollout, by how many there are at once."""
TURNS, TURN_TOKENS = 100, 640
RESULTS = "SELECT result FROM rollouts WHERE run_id = {run_id:String} AND outcome = 'ok'"
ENDED = "SELECT count() FROM raw_attempts WHERE run_id = {run_id:String}"


async def added(system: System, direct: str, at_once: int, thousands: int, stream: bool) -> list[Result]:
    """Percentiles of the calls through the gateways less those of calls past them."""
    run = f"g-{at_once}-{thousands}-{stream}"
    calls = CALLS[at_once] if thousands == 1 else max(CALLS[at_once] // 4, 2)
    fields = {"calls": calls, "stream": stream, "characters": 4000 * thousands, "direct": direct}
    fields["spread"] = DELAY_SECONDS if at_once > 1 else 0.0
    tasks = [
        Task(id=f"{run}-{n}", run_id=run, agent="default", mode="eval", input=fields, deadline=300)
        for n in range(at_once)
    ]
    await publish_all(system.at.bus, tasks, 60, lambda: None)
    await system.until_stored()
    rows = (await asyncio.to_thread(system.sql.query, RESULTS, {"run_id": run})).result_rows
    results = [json.loads(row[0]) for row in rows]
    through, past = ([value for item in results for value in item[name]] for name in ("through", "past"))
    kind = f"{at_once} at once, {thousands}k tokens, {'streamed' if stream else 'plain'}"
    return [
        Result(f"{kind}: added, {name}", value - floor, "ms", note=f"directly {floor:.0f} ms")
        for (name, value), floor in zip(percentiles(through).items(), percentiles(past).values(), strict=True)
    ]


async def memory(system: System) -> Result:
    """What a runner holds at the end of a conversation of a hundred turns, 64k tokens long."""
    before = usage()["runners"][1]
    fields = {"turns": TURNS, "characters": 4 * TURN_TOKENS - 4}
    await TaskPublisher(system.at.bus).publish_task(
        Task(id="long", run_id="long", agent="default", mode="eval", input=fields, deadline=300)
    )
    most = before
    while not await system.fetch_value(ENDED, run_id="long"):
        most = max(most, usage()["runners"][1])
        await asyncio.sleep(0.1)
    outcome = await system.fetch_value("SELECT any(outcome) FROM rollouts WHERE run_id = 'long'")
    stored = await system.fetch_value(
        "SELECT sum(prompt_suffix_tokens + response_tokens) FROM model_calls WHERE run_id = 'long'"
    )
    plain = await system.fetch_value(
        "SELECT sum(prompt_tokens + response_tokens) FROM model_calls WHERE run_id = 'long'"
    )
    note = f"{outcome}; {plain:,} tokens in all prompts, {stored:,} of them kept"
    return Result(
        f"{TURNS} turns to {TURNS * TURN_TOKENS // 1000}k tokens: memory of the runner", most - before, "MiB", note=note
    )


async def measure() -> list[Result]:
    """All cases on one system."""
    async with running("gateway") as system:
        command = [sys.executable, "-m", "benchmarks.gateway.engine", system.at.url, str(system.at.keys.credentials)]
        engine = await spawn(*command, pdeathsig=signal.SIGKILL)
        try:
            node = await system.at.wait_for_member(lambda beat: beat.role == "inference", "engine", 60)
            await system.runners([runner(0, AGENT, 256)])
            direct = str(node.status["engine"])
            await added(system, direct, 1, 1, False)  # connections, imports
            results = [item for case in CASES for item in await added(system, direct, *case)]
            results.append(await memory(system))
        finally:
            await terminate(engine, 5)
    return [*results, Result("the engine's own delay", 1e3 * DELAY_SECONDS, "ms")]


def main() -> list[Result]:
    """Measure and write."""
    results = uvloop.run(measure())
    write("gateway", results)
    print(table(result.as_json() for result in results))
    return results


if __name__ == "__main__":
    print(machine())
    main()
