"""Stored rollouts graded again, and training steps made of the new rewards."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from clickhouse_connect.driver.client import Client
from msgspec.structs import replace
from typer.testing import CliRunner

from lightningbus.analysis.regrading import chunk_by_task
from lightningbus.analysis.run_history import regrade_row
from lightningbus.bus.client import Bus
from lightningbus.bus.embedded.nats_server import nats_server
from lightningbus.cli.app import app
from lightningbus.run.errors import UserError
from lightningbus.run.run_directory.directory import RunDirectory
from lightningbus.schemas import ids, subjects
from lightningbus.schemas.base import Event
from lightningbus.schemas.spans import SpanBatch
from lightningbus.schemas.tasks import Task, TaskBatchRecord, TaskRecord
from lightningbus.schemas.training import RolloutDisposition, TrainingStep
from lightningbus.tasks.task_publisher import build_producer_span
from tests.factories import SECOND_NS, START_NS, batches, model_call
from tests.graders.endpoint import judging, score_of
from tests.learner.conftest import tiny_model
from tests.polling import until
from tests.store.conftest import Start, client
from tests.store.conftest import start_store as start_store

FUNCTIONS = Path(__file__).parents[1] / "graders" / "functions"
TASKS, SAMPLES = 3, 4
STORED = "SELECT (SELECT count() FROM rollouts), (SELECT count() FROM training_steps)"


def recorded(run: str) -> Iterator[Event]:
    """A step of three groups; the agent's result is its reward."""
    uses = []
    for task_number in range(TASKS):
        for sample in range(SAMPLES):
            task = Task(
                id=f"t{task_number}", run_id=run, agent="default", input={"q": task_number}, sample_index=sample
            )
            rollout = ids.rollout_id(task.id, sample)
            span = build_producer_span(task, subjects.task("train", "default"), START_NS, START_NS + 1)
            yield TaskBatchRecord(tasks=(TaskRecord(task=task, rollout_id=rollout, span=span),))
            reward = sample / SAMPLES
            (batch,) = batches(task.id, sample, reward, parts=1, run=run, samples=SAMPLES)
            call = model_call(
                0, [5, 6], [7, 8, 9], request='{"messages": [{"role": "user", "content": "q"}]}', response='"said"'
            )
            assert batch.end is not None
            end = replace(batch.end, result=json.dumps(reward))
            batch = replace(batch, spans=(replace(batch.spans[0], call=call, span_id=f"s{rollout}"),), end=end)
            yield batch
            uses.append(
                RolloutDisposition(
                    rollout_id=rollout, task_id=task.id, attempt=1, execution_id=batch.execution_id, outcome="ok",
                    reward=reward, advantage=0.0, trained=True, tokens=3, max_staleness=0, batch_index=len(uses),
                )
            )  # fmt: skip
    yield TrainingStep(
        run_id=run, model="policy", step=1, version=1, epoch=1, started_ns=START_NS, ended_ns=START_NS + SECOND_NS,
        rollouts=tuple(uses), metrics={}, settings=json.dumps({"model_path": "model"}), spans=(),
    )  # fmt: skip


def write_graders(path: Path, grader: dict[str, Any]) -> str:
    path.write_text(json.dumps({"graders": {"g": grader}, "working_dir": str(FUNCTIONS), "max_attempts": 1}))
    return str(path)


async def publish(bus: Bus, events: Iterable[Event]) -> None:
    """Publish events as runners and learners do."""
    subject_of = {TaskBatchRecord: subjects.TASK_PUBLISHED, SpanBatch: subjects.TRAIN_ROLLOUT}
    for number, event in enumerate(events):
        await bus.publish(subject_of.get(type(event), subjects.TRAINING_STEP), event, msg_id=f"{number}")


def fill_store(bus: str, directory: Path) -> None:
    """Let a store of its own write what is on a bus into its files."""
    command = [sys.executable, "-m", "lightningbus", "store", "--bus", bus, "--http-port", "0", "--data-dir"]
    process = subprocess.Popen([*command, str(directory)], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = next(line for line in process.stderr if "SQL at " in line)
        sql = client(line.split("SQL at ")[1].split(",")[0])
        until(lambda: sql.query(STORED).result_rows[0], (TASKS * SAMPLES, 1))
    finally:
        process.terminate()
        process.wait()


async def command(*words: str) -> tuple[int, str]:
    done = await asyncio.to_thread(CliRunner().invoke, app, words)
    return done.exit_code, done.output


def grades(sql: Client, grading: str) -> dict[str, float | None]:
    rows = sql.query("SELECT rollout_id, reward FROM grades WHERE grading = {g:String}", parameters={"g": grading})
    return dict(rows.result_rows)


async def test_stored_rollouts_get_new_rewards_and_keep_the_old(
    bus: Bus, nats_url: str, start_store: Start, tmp_path: Path
) -> None:
    store = await asyncio.to_thread(start_store, nats_url)
    await publish(bus, recorded("r"))
    await asyncio.to_thread(until, lambda: store.sql.query(STORED).result_rows[0], (TASKS * SAMPLES, 1))
    opposite = write_graders(tmp_path / "opposite.json", {"function": "scores:opposite"})
    regrade = ("regrade", opposite, "--run", "r", "--bus", nats_url, "--json", "--name")
    code, output = await command(*regrade, "live")
    assert code == 2 and "is the grading that rollouts ended with" in output
    code, output = await command(*regrade, "other", "--limit", "5")
    assert code == 0 and json.loads(output)[0]["num_graded"] == 5
    code, output = await command(*regrade, "other")
    (result,) = json.loads(output)
    assert code == 1 and (result["num_graded"], result["num_failed"]) == (TASKS * SAMPLES - 5 - SAMPLES, SAMPLES)
    assert result["example"].startswith("t2.0: g: scores:opposite failed: ValueError: I cannot say")
    rewards = grades(store.sql, "other")
    assert rewards == {
        f"t{task}.{sample}": 1 - sample / SAMPLES if task != 2 else None
        for task in range(3)
        for sample in range(SAMPLES)
    }
    assert store.fetch_value("SELECT sum(reward) FROM rollouts") == TASKS * 1.5, "the old rewards stay"
    changed = write_graders(tmp_path / "changed.json", {"function": "scores:opposite", "weight": 2})
    code, output = await command("regrade", changed, *regrade[2:], "other")
    assert code == 2 and "'other' is a grading by other graders, which stays" in output
    async with judging(score_of) as endpoint:
        judge = {"url": endpoint.url, "model": "m", "rubric": "more", "max_score": 1}
        code, output = await command("regrade", write_graders(tmp_path / "j.json", {"judge": judge}), *regrade[2:], "j")
    assert code == 0 and json.loads(output)[0]["num_judge_calls"] == TASKS * SAMPLES
    assert "[user]\nq" in endpoint.requests[0]["messages"][1]["content"]
    assert set(grades(store.sql, "j").values()) == {0.0, 0.25, 0.5, 0.75}
    code, output = await command("report", "grading", "--sql", store.url, "--json")
    assert {row["grading"]: row["failed"] for row in json.loads(output)} == {"j": 0, "other": SAMPLES}


@pytest.mark.integration
@pytest.mark.long
async def test_an_ended_run_is_graded_again_and_a_step_is_made_of_the_new_rewards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal rewards, by another sum, give the same digest; a rollout without a grade is named."""
    monkeypatch.chdir(tmp_path)
    tiny_model(tmp_path / "model")
    directory = RunDirectory(Path("runs/small")).create()
    async with nats_server(directory.path / "bus") as server, Bus.connect(server.url, "test") as bus:
        await bus.provision()
        await publish(bus, recorded("small"))
        await asyncio.to_thread(fill_store, server.url, directory.store)
    for name in ("same", "opposite"):
        graders = write_graders(tmp_path / f"{name}.json", {"function": f"scores:{name}"})
        code, output = await command("regrade", graders, "--run", "small", "--name", name)
        assert code == (name == "opposite"), output
    replay = ("steps", "replay", "--step", "1", "--run", "small", "--json")
    digests = {}
    for grading in ("", "same", "opposite"):
        _, output = await command(*replay, *(["--grading", grading] if grading else []))
        assert "[" in output, output
        digests[grading] = json.loads(output[output.index("[") :])[0]["batch_sha256"]
    assert digests[""] == digests["same"] != digests["opposite"]
    code, output = await command(*replay, "--grading", "none")
    assert code == 2 and "has no grade of 'none': `lightningbus regrade` gives it one" in output


def test_a_grade_counts_in_place_of_the_reward_of_an_attempt_that_ended_well() -> None:
    row = {"rollout_id": "t.0", "outcome": "ok", "reward": 1.0, "rewards": {"agent": 1.0}}
    assert regrade_row(row, {"reward": 0.0, "rewards": {"g": 0.0}}, "n") == {
        **row, "reward": 0.0, "rewards": {"agent": 1.0, "g": 0.0},
    }  # fmt: skip
    assert regrade_row(row, {"reward": None, "rewards": {}}, "n")["outcome"] == "grading_failed"
    failed = {**row, "outcome": "timeout"}
    assert regrade_row(failed, None, "n") is failed
    with pytest.raises(UserError, match=r"rollout t\.0 has no grade"):
        regrade_row(row, None, "n")


def test_rollouts_are_read_in_chunks_of_whole_tasks() -> None:
    pairs = [(f"t{number // 3}", f"e{number}") for number in range(8)]
    assert [len(chunk) for chunk in chunk_by_task(pairs, 4)] == [6, 2]
    assert list(chunk_by_task([], 4)) == []
