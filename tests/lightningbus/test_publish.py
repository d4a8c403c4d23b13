"""``lightningbus publish``: all of a file or nothing of it, what was there already, and a bus that is not ready."""

import asyncio
import json
import math
from pathlib import Path

import pytest

from lightningbus.bus.client import Bus
from lightningbus.bus.embedded.nats_server import NatsServer
from lightningbus.bus.streams.specs import STORE_TRAIN, runner_consumer
from lightningbus.learner.rollouts.assembler import Assembler
from lightningbus.learner.rollouts.groups import GroupBuffer
from lightningbus.run.errors import UserError
from lightningbus.run.evaluation.publishing import build_tasks
from lightningbus.run.run_directory.directory import RunDirectory
from lightningbus.schemas import subjects
from lightningbus.schemas.codec import decode
from lightningbus.schemas.spans import SpanBatch
from lightningbus.schemas.tasks import Task
from lightningbus.tasks.errors import TaskFileError
from lightningbus.tasks.task_loading import MAX_INPUT_BYTES, TaskInput, load_tasks
from tests.lightningbus.test_cli import run, says
from tests.polling import HANG_SECONDS

GOOD = '{"id": "a", "input": {"n": 1}}\n'


async def num_tasks(bus: Bus) -> int:
    return (await bus.js.stream_info(subjects.TASKS)).state.messages


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (f'{{"input": {2**70}}}', "its input cannot be sent: "),
        ('{"input": "\\ud800"}', "a lone surrogate"),
        (json.dumps({"input": "x" * MAX_INPUT_BYTES}), f"the limit is {MAX_INPUT_BYTES:,}"),
        ('{"input": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested too deeply"),
        ('{"input": NaN}', "NaN is no JSON number"),
        ('{"input": [1, -Infinity]}', "-Infinity is no JSON number"),
        ('{"input": 1e999}', "1e999 is too large a number"),
        ('{"id": "b", "input": 1, "answer": 2}', "unknown key 'answer': known are id, input, labels"),
        ('{"idd": "b", "input": 1}', "unknown key 'idd': did you mean 'id'?"),
        ('{"id": null, "input": 1}', "id is text or an integer, not null"),
        ('{"id": 1.5, "input": 1}', "id is text or an integer, not 1.5"),
        ('{"id": "b\\r\\nNats-Rollup: all", "input": 1}', "printable characters only"),
        ('{"id": "\\ud800", "input": 1}', "printable characters only"),
        ('{"id": "b ", "input": 1}', "no space at its ends"),
        ('{"input": 1, "labels": {"difficulty": 3}}', "labels need the form"),
        ('{"input": 1, "labels": {"how hard": "very"}}', "names of letters, digits"),
        ('{"input": 1, "labels": {"x": "\\ud800"}}', "not printable"),
        (json.dumps({"input": 1, "labels": {f"l{n}": "" for n in range(17)}}), "16 at most"),
    ],
)
async def test_a_line_that_cannot_be_sent_is_named_and_nothing_is_sent(
    bus: Bus, nats_url: str, tmp_path: Path, line: str, reason: str
) -> None:
    (tmp_path / "tasks.jsonl").write_text(GOOD + line + "\n")
    sentence = says(await asyncio.to_thread(run, "publish", "tasks.jsonl", "--bus", nats_url, cwd=tmp_path))
    assert sentence.startswith("tasks.jsonl line 2: ") and reason in sentence, sentence
    assert await num_tasks(bus) == 0


async def test_an_input_at_the_limit_is_published_with_its_record(bus: Bus, nats_url: str, tmp_path: Path) -> None:
    """What is taken for good can be sent: the record holds the task once more, and a span."""
    text = "x" * (MAX_INPUT_BYTES - 5)  # MessagePack puts five bytes in front
    (tmp_path / "tasks.jsonl").write_text(json.dumps({"id": "i" * 128, "input": text}) + "\n")
    done = await asyncio.to_thread(run, "publish", "tasks.jsonl", "--bus", nats_url, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "1 rollouts of 1 tasks published\n"), done.stderr
    assert (await bus.js.stream_info(subjects.EVENTS)).state.messages == 1


def test_a_line_ends_where_jsonl_says_and_a_missing_id_is_the_line_number(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text('{"input": "a\u2028b\x85c"}\r\n\n{"input": 2}\n', encoding="utf-8")
    assert [(problem.id, problem.input) for problem in load_tasks(tmp_path / "tasks.jsonl")] == [
        ("1", "a\u2028b\x85c"),
        ("3", 2),
    ]
    (tmp_path / "tasks.jsonl").write_text('{"input": 1}\n{"id": 1, "input": 2}\n')
    with pytest.raises(TaskFileError, match="line 2: id '1' stands twice"):
        load_tasks(tmp_path / "tasks.jsonl")


async def test_tasks_that_were_there_already_are_counted_and_a_pass_publishes_them_again(
    bus: Bus, nats_url: str, tmp_path: Path
) -> None:
    (tmp_path / "tasks.jsonl").write_text(GOOD + '{"id": "b", "input": 2}\n')

    async def publish(*options: str) -> str:
        done = await asyncio.to_thread(run, "publish", "tasks.jsonl", "--bus", nats_url, *options, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert await publish() == "2 rollouts of 2 tasks published\n"
    again = "0 of 2 published, 2 were there already: --pass NAME publishes them again\n"
    assert await publish() == again
    (tmp_path / "tasks.jsonl").write_text(GOOD + '{"id": "c", "input": 2}\n')
    assert (await publish()).startswith("1 of 2 published, 1 were there already")
    assert await publish("--pass", "second") == "2 rollouts of 2 tasks published\n"
    last = await bus.js.get_last_msg(subjects.TASKS, subjects.task("train", "default"))
    assert decode(Task, last.data or b"").id == "c@run-second"
    assert await num_tasks(bus) == 5
    assert "--pass: 'a b' is not a name" in says(
        await asyncio.to_thread(run, "publish", "tasks.jsonl", "--bus", nats_url, "--pass", "a b", cwd=tmp_path)
    )


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("samples", 10_000_000), ("samples", 0), ("samples", 65_537), ("temperature", math.inf),
        ("temperature", math.nan), ("temperature", -1.0), ("temperature", 1e30), ("deadline", 1e30),
        ("deadline", math.inf), ("deadline", math.nan), ("deadline", 0.0),
    ],
)  # fmt: skip
def test_numbers_that_no_rollout_can_have_are_refused(option: str, value: float) -> None:
    with pytest.raises(UserError, match=f"^--{option}: .* is not "):
        build_tasks([TaskInput("a", 1)], option_prefix="--", **{option: value})  # type: ignore[arg-type]


async def test_a_mistaken_publish_is_taken_back_and_its_groups_are_given_up(
    bus: Bus, nats_url: str, tmp_path: Path
) -> None:
    (tmp_path / "tasks.jsonl").write_text(GOOD)
    (tmp_path / "right.jsonl").write_text('{"id": "right", "input": 1}\n')
    wrong = ("publish", "tasks.jsonl", "--samples", "300", "--bus", nats_url)
    await bus.ensure_consumer(runner_consumer("default", "train"))
    await asyncio.to_thread(run, "publish", "right.jsonl", "--bus", nats_url, cwd=tmp_path)
    await asyncio.to_thread(run, *wrong, cwd=tmp_path)
    async with bus.pull(runner_consumer("default", "train"), slots=2) as puller:
        await (await anext(puller)).ack(sync=True)  # the right one
        await (await anext(puller)).ack(sync=True)
    taken = await asyncio.to_thread(run, *wrong, "--take-back", cwd=tmp_path)
    assert taken.stdout == "299 of 300 rollouts taken back\n" and await num_tasks(bus) == 0
    groups = GroupBuffer(60.0, lambda rollout: rollout.reward is not None)
    assembler = Assembler()
    async with asyncio.timeout(HANG_SECONDS), bus.pull(STORE_TRAIN, 64) as puller:
        for _ in range(299):
            message = await anext(puller)
            rollout = assembler.add(message.decode_as(SpanBatch), message.sequence)
            assert rollout is not None and rollout.outcome == "preempted"
            groups.add(rollout, 0.0)
            await message.ack()
    assert groups.waiting == 1, "the sample that a runner finished is waited for"
    again = await asyncio.to_thread(run, *wrong, "--take-back", cwd=tmp_path)
    assert again.stdout == "0 of 300 rollouts taken back\n"


async def test_columns_of_a_table_are_published_under_the_names_the_agent_reads(
    bus: Bus, nats_url: str, tmp_path: Path
) -> None:
    (tmp_path / "train.csv").write_text("uid,prompt,target\na,2+2,4\n")
    columns = ["--columns", "question=prompt,answer=target", "--id", "uid"]
    done = await asyncio.to_thread(run, "publish", "train.csv", *columns, "--bus", nats_url, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "1 rollouts of 1 tasks published\n"), done.stderr
    last = await bus.js.get_last_msg(subjects.TASKS, subjects.task("train", "default"))
    task = decode(Task, last.data or b"")
    assert (task.id, task.input) == ("a@run", {"question": "2+2", "answer": "4"})
    wrong = await asyncio.to_thread(run, "publish", "train.csv", "--columns", "prompt", "--bus", nats_url, cwd=tmp_path)
    assert says(wrong) == "--columns: 'prompt' is not of the form field=column"


@pytest.mark.integration
async def test_an_id_that_a_run_and_a_pass_make_too_long_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text(json.dumps({"id": "i" * 128, "input": 1}) + "\n")
    options = ["--run", "r" * 64, "--pass", "p" * 64, "--bus", "nats://127.0.0.1:1"]
    assert "the limit is 200" in says(await asyncio.to_thread(run, "publish", "tasks.jsonl", *options, cwd=tmp_path))


async def test_a_bus_without_streams_is_named_at_once(nats: NatsServer, tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text(GOOD)
    sentence = says(await asyncio.to_thread(run, "publish", "tasks.jsonl", "--bus", nats.url, cwd=tmp_path))
    assert sentence == "stream TASKS is missing: run `lightningbus provision`"


@pytest.mark.integration
@pytest.mark.parametrize(
    "content", ["", *(pytest.param(text, marks=pytest.mark.long) for text in ("{", '{"pid": "x"}', "[]"))]
)
def test_a_corrupt_endpoints_file_is_named_at_once(tmp_path: Path, content: str) -> None:
    """Rather than another bus tried, which is not the run's."""
    RunDirectory(tmp_path / "runs" / "mine").create()
    (tmp_path / "runs" / "mine" / "endpoints.json").write_text(content)
    (tmp_path / "tasks.jsonl").write_text(GOOD)
    for command in (["publish", "tasks.jsonl"], ["status"], ["query", "SELECT 1"]):
        sentence = says(run(*command, cwd=tmp_path))
        assert "runs/mine/endpoints.json cannot be read" in sentence, sentence
    done = run("status", "--bus", "nats://127.0.0.1:1", cwd=tmp_path)
    assert "no NATS server answers at nats://127.0.0.1:1" in done.stderr, "who names the bus needs no file"
