"""Many rollouts in one agent process: side by side, each with its own key, and one does not end another."""

import asyncio
import json
import re
from pathlib import Path

import pytest

from lightningbus.bus.client import Bus
from lightningbus.runners import runner
from lightningbus.runners.agent.launcher import AgentStartError
from lightningbus.runners.agent.worker.output_capture import MAX_TAIL_BYTES
from lightningbus.runners.settings import RunnerSettings
from lightningbus.schemas.semconv.attributes import AGENT_OUTPUT
from lightningbus.schemas.spans import SpanBatch
from lightningbus.tasks.task_publisher import TaskPublisher
from tests.runners.conftest import AGENTS, ScriptedEngine, calls_of, ended, running, task

MANY = {"concurrency": 8, "max_concurrent_per_process": 8}


async def test_rollouts_share_a_process_and_their_calls_are_their_own(bus: Bus, engine: ScriptedEngine) -> None:
    async with running(bus, entrypoint="many:asks", **MANY):
        for number in range(8):
            await TaskPublisher(bus).publish_task(task(id=f"t{number}", input={"name": f"name {number}"}))
        actual = await ended(bus, 8)
    assert {batch.end.outcome for batch in actual if batch.end} == {"ok"}, actual[0].end
    assert len({json.loads(batch.end.result)["pid"] for batch in actual if batch.end}) == 1
    for batch in actual:
        (call,) = calls_of(batch)
        assert f"name {batch.task_id[1:]}" in call.request


async def test_they_run_at_the_same_time(bus: Bus) -> None:
    async with running(bus, entrypoint="many:meets", **MANY):
        for number in range(8):
            await TaskPublisher(bus).publish_task(task(id=f"t{number}", input={"name": str(number), "wanted": 8}))
        actual = await ended(bus, 8)
    assert [batch.end.outcome for batch in actual if batch.end] == ["ok"] * 8


async def test_a_deadline_ends_one_and_not_the_others(bus: Bus) -> None:
    async with running(bus, entrypoint="many:sleeps", **MANY):
        await TaskPublisher(bus).publish_task(task(id="slow", input={"seconds": 60.0}, deadline=0.5, max_attempts=1))
        await TaskPublisher(bus).publish_task(task(id="long", input={"seconds": 1.5}))
        by_name = {batch.task_id: batch.end for batch in await ended(bus, 2)}
    assert by_name["slow"] and by_name["slow"].outcome == "timeout"
    assert by_name["long"] and (by_name["long"].outcome, by_name["long"].reward) == ("ok", 1.0)


async def test_one_that_does_not_end_takes_its_process_with_it_and_the_others_are_tried_again(
    bus: Bus, tmp_path: Path
) -> None:
    fields = {"until": str(tmp_path / "done")}
    async with running(bus, entrypoint="many:deaf", **MANY):
        await TaskPublisher(bus).publish_task(task(id="other", input=fields))
        await TaskPublisher(bus).publish_task(task(id="deaf", input=fields, deadline=0.5, max_attempts=1))
        results = [(batch.task_id, batch.end.outcome) for batch in await ended(bus, 2, final=None) if batch.end]
        (tmp_path / "done").touch()
        (again,) = await ended(bus)
    assert sorted(results) == [("deaf", "timeout"), ("other", "infra_error")]
    assert again.end is not None and (again.task_id, again.end.outcome) == ("other", "ok")


async def test_one_that_blocks_is_charged_alone_and_the_others_are_tried_again(bus: Bus, tmp_path: Path) -> None:
    """Their deadlines pass too while the event loop is blocked."""
    fields = {"until": str(tmp_path / "done"), "wanted": 4}
    async with running(bus, entrypoint="many:stuck", **MANY):
        for name in ("blocker", "a", "b", "c"):
            await TaskPublisher(bus).publish_task(task(id=name, input={"name": name, **fields}, deadline=3.0))
        ends = {batch.task_id: batch.end for batch in await ended(bus, 4, final=None) if batch.end}
        (tmp_path / "done").touch()
        again = [batch.end.outcome for batch in await ended(bus, 3) if batch.end]
    blocker = ends.pop("blocker")
    assert blocker.outcome == "timeout" and blocker.is_final
    words = r"the agent did not end within its deadline of 3 s: it blocked the event loop of its process for \d s; "
    assert re.match(words, blocker.error), blocker.error
    assert {end.outcome for end in ends.values()} == {"infra_error"}, ends
    assert all(end.error.endswith("; other rollouts shared it") for end in ends.values()), ends
    assert all(end.ended_ns - end.started_ns < 10e9 for end in (blocker, *ends.values()))
    assert again == ["ok"] * 3


async def test_one_that_blocks_for_a_while_within_its_deadline_is_not_ended(bus: Bus, tmp_path: Path) -> None:
    """The other, whose deadline passes meanwhile, is retried in the same process once that goes on."""
    fields = {"until": str(tmp_path / "done"), "wanted": 2, "seconds": 5.0}
    async with running(bus, entrypoint="many:stuck", **MANY):
        await TaskPublisher(bus).publish_task(task(id="blocker", input={"name": "blocker", **fields}))
        await TaskPublisher(bus).publish_task(task(id="other", input={"name": "other", **fields}, deadline=2.0))
        (first,) = await ended(bus, final=None)
        (tmp_path / "done").touch()
        ends = [batch.end for batch in await ended(bus, 2) if batch.end]
    assert first.end is not None and (first.task_id, first.end.outcome) == ("other", "infra_error")
    assert re.match("the event loop of the agent's process was blocked for [2-5] s; other", first.end.error), first.end
    assert [end.outcome for end in ends] == ["ok", "ok"]
    assert len({json.loads(end.result)["pid"] for end in ends}) == 1


async def test_one_that_others_ended_twice_runs_beside_none(bus: Bus, tmp_path: Path) -> None:
    fields = {"until": str(tmp_path / "done")}
    outcomes = []
    async with running(bus, entrypoint="many:unlucky", concurrency=2, max_concurrent_per_process=2):
        await TaskPublisher(bus).publish_task(task(id="victim", input={"name": "victim"}))
        for number in range(3):
            killer = task(id=f"killer{number}", input={"name": "killer", **fields}, max_attempts=1)
            await TaskPublisher(bus).publish_task(killer)
            batches = await ended(bus, 1 if number == 2 else 2, final=None)
            outcomes += [batch.end.outcome for batch in batches if batch.end]
        (tmp_path / "done").touch()
    assert outcomes == ["infra_error"] * 4 + ["ok"] and batches[0].end is not None
    assert json.loads(batches[0].end.result)["beside"] == ["victim"] and batches[0].attempt == 3


WAYS = (
    "begins", "in a thread", "in the loop's pool", "in a pool of all", "to a thread", "in a task", "logs", "as bytes",
    "ends",
)  # fmt: skip


async def test_what_each_rollout_prints_is_its_own(bus: Bus, capfd: pytest.CaptureFixture[str]) -> None:
    """However it prints in its process: only what a child prints is nobody's."""
    publisher = TaskPublisher(bus)
    async with running(bus, entrypoint="many:prints", **MANY):
        for number in range(6):
            await publisher.publish_task(task(id=f"t{number}", input={"name": f"n{number}", "wanted": 8}))
        bad = {"name": "bad", "wanted": 8, "ends": "badly"}
        await publisher.publish_task(task(id="bad", input=bad))
        late = {"name": "late", "wanted": 8, "ends": "late"}
        await publisher.publish_task(task(id="late", input=late, deadline=10.0, max_attempts=1))
        ends = {batch.task_id: batch for batch in await ended(bus, 8)}
    assert {id: batch.end.outcome for id, batch in ends.items() if batch.end} == {
        **{f"t{number}": "ok" for number in range(6)}, "bad": "agent_error", "late": "timeout",
    }  # fmt: skip
    names = {f"t{number}": f"n{number}" for number in range(6)}
    for id, batch in ends.items():
        assert read_output(batch) == "".join(f"{names.get(id, id)} {way}\n" for way in WAYS), id
    log = capfd.readouterr().err
    # Threads print at once, and `print` writes each of its arguments alone: lines may be mixed, but nothing is lost.
    assert {log.count(name) for name in names.values()} == {len(WAYS) + 1}, log
    assert {log.count(way) >= len(ends) for way in (*WAYS, "by a child")} == {True} and "imported" in log, log


async def test_the_end_of_a_long_output_is_kept(bus: Bus) -> None:
    async with running(bus, entrypoint="many:prints", **MANY):
        await TaskPublisher(bus).publish_task(task(input={"name": "n", "wanted": 1, "chars": 40_000}))
        (batch,) = await ended(bus)
    text = read_output(batch)
    first, _, rest = text.partition("\n")
    assert first.startswith("(") and first.endswith(" bytes before)") and text.endswith("x\nn ends\n")
    assert len(rest.encode()) == MAX_TAIL_BYTES


def read_output(batch: SpanBatch) -> str:
    """Return the output on the rollout's record."""
    return "".join(str(span.attributes.get(AGENT_OUTPUT, "")) for span in batch.spans)


async def test_a_function_that_blocks_is_refused(bus: Bus) -> None:
    settings = RunnerSettings(entrypoint="many:blocks", working_dir=AGENTS, concurrency=8, max_concurrent_per_process=8)
    with pytest.raises(AgentStartError, match="many:blocks is no async function"):
        await runner.run(bus, settings, asyncio.Event())
