"""Dead letters from the command line: seen, sent again, dropped; and the flood that is not buried."""

import asyncio
import json
import sys
from typing import Any
from uuid import uuid4

import pytest

from lightningbus.bus.client import Bus
from lightningbus.bus.dead_letters import DeadLetterQueue
from lightningbus.bus.dlq_limit import MAX_CONSECUTIVE, WINDOW, DlqLimit
from lightningbus.bus.errors import DlqLimitExceededError
from lightningbus.bus.streams.specs import runner_consumer
from lightningbus.schemas import subjects
from lightningbus.schemas.codec import MAX_BYTES, encode
from lightningbus.schemas.dead_letters import DeadLetter
from lightningbus.schemas.fleet import Alert
from lightningbus.schemas.tasks import Task
from lightningbus.tasks.task_publisher import TaskPublisher
from tests.polling import HANG_SECONDS


async def dead(nats_url: str, *arguments: str, code: int = 0) -> str:
    """``lightningbus dlq …``; its output, or its error if it is to fail."""
    process = await asyncio.create_subprocess_exec(
        *[sys.executable, "-m", "lightningbus", "dlq", *arguments, "--bus", nats_url],
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode == code, err.decode()
    return (err if code else out).decode()


async def dead_letter(bus: Bus, count: int) -> None:
    """Tasks delivered twice, then given up."""
    await bus.ensure_consumer(runner_consumer("calc", "train"))
    for number in range(count):
        await TaskPublisher(bus).publish_task(Task(id=f"t{number}", run_id="r", agent="calc", input={"n": number}))
    async with bus.pull(runner_consumer("calc", "train"), slots=count) as puller:
        for _ in range(count):
            await (await asyncio.wait_for(anext(puller), HANG_SECONDS)).nak()
        for _ in range(count):
            await DeadLetterQueue(bus).add(await asyncio.wait_for(anext(puller), HANG_SECONDS), "poison: nobody lived")
    assert (await bus.js.stream_info(subjects.TASKS)).state.messages == 0


async def test_letters_are_listed_and_shown(bus: Bus, nats_url: str) -> None:
    assert "there is no dead letter" in await dead(nats_url, "list")
    await dead_letter(bus, 2)
    listed = json.loads(await dead(nats_url, "list", "--json"))
    assert [(letter["stream"], letter["deliveries"], letter["reason"]) for letter in listed] == [
        ("TASKS", 2, "poison: nobody lived")
    ] * 2
    assert "poison: nobody lived" in await dead(nats_url, "list")
    output = json.loads(await dead(nats_url, "show", str(listed[0]["number"])))
    assert output["message"]["input"] == {"n": 0} and output["headers"]["Nats-Msg-Id"] == "task:t0.0"


async def test_a_letter_sent_again_is_a_task_that_goes_on_counting(bus: Bus, nats_url: str) -> None:
    await dead_letter(bus, 2)
    first, second = [number async for number, _ in DeadLetterQueue(bus).list_letters()]
    assert "1 sent again" in await dead(nats_url, "replay", str(first))
    async with bus.pull(runner_consumer("calc", "train"), slots=1) as puller:
        again = await asyncio.wait_for(anext(puller), HANG_SECONDS)
        assert again.decode_as(Task).prior_attempts == 2 and again.num_delivered == 1
        await again.ack(sync=True)
    assert [number async for number, _ in DeadLetterQueue(bus).list_letters()] == [second]


async def test_letters_are_dropped_and_a_wrong_number_is_one_sentence(bus: Bus, nats_url: str) -> None:
    await dead_letter(bus, 2)
    assert "2 deleted" in await dead(nats_url, "delete", "--stream", "TASKS")
    assert [letter async for letter in DeadLetterQueue(bus).list_letters()] == []
    assert "there is no dead letter 9" in await dead(nats_url, "replay", "9", code=2)
    assert "give the numbers" in await dead(nats_url, "delete", code=2)


async def put_letter(bus: Bus, at: str = subjects.TASKS, **changes: Any) -> int:
    """A letter as a role may write it, by its own words; its number."""
    task = Task(id="evil", run_id="r", agent="calc", input=1)
    letter = DeadLetter(
        **{
            "stream": subjects.TASKS, "subject": "lb.task.train.calc", "sequence": 1, "num_delivered": 1, "reason": "x",
            "headers": {}, "payload": encode(task), "dead_lettered_at_ns": 1, **changes,
        }
    )  # fmt: skip
    return await bus.publish(subjects.dlq(at), letter, msg_id=uuid4().hex)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"stream": "WEIGHTS", "subject": "lb.weights.version.policy", "at": "WEIGHTS"},
            "letters of WEIGHTS are not sent again",
        ),
        ({"stream": "WEIGHTS", "subject": "lb.weights.version.policy"}, "there is no dead letter 1 that can be read"),
        ({"stream": "OBJ_weights", "at": "OBJ_weights"}, "letters of OBJ_weights are not sent again"),
        ({"payload": b"\x00"}, "it holds no Task"),
        (
            {"stream": "EVENTS", "at": "EVENTS", "payload": b"\x00"},
            "it holds no TaskBatchRecord or TrainingStep or RolloutGraded or RolloutReviewed or TaskDecision",
        ),
    ],
)
async def test_a_letter_that_is_none_of_its_stream_is_not_sent_again(
    bus: Bus, nats_url: str, changes: dict[str, Any], sentence: str
) -> None:
    await put_letter(bus, **changes)
    assert sentence in await dead(nats_url, "replay", "1", code=2)
    assert sum([(await bus.js.stream_info(name)).state.messages for name in (subjects.TASKS, subjects.WEIGHTS)]) == 0


@pytest.mark.parametrize(
    "subject",
    [
        "$JS.API.STREAM.DELETE.TASKS",
        "lb.weights.version.policy",
        pytest.param("lb.weights.release.policy", marks=pytest.mark.long),
        pytest.param("x.y", marks=pytest.mark.long),
    ],
)
async def test_a_letter_goes_where_its_stream_takes_it_and_nowhere_else(bus: Bus, nats_url: str, subject: str) -> None:
    """Its subject and headers are whoever's who wrote it; replay runs as admin."""
    headers = {"Nats-Rollup": "all", "nats-expected-stream": "X", "Nats-Msg-Id": "other", "a": "b", "traceparent": "x"}
    number = await put_letter(bus, subject=subject, headers=headers)
    listed = json.loads(await dead(nats_url, "list", "--json"))
    assert [letter["subject"] for letter in listed] == [subject]
    assert subject in await dead(nats_url, "list")
    await dead(nats_url, "replay", str(number))
    sent = await bus.js.get_last_msg(subjects.TASKS, ">")
    assert sent.subject == "lb.task.train.calc"
    assert sent.headers == {"Nats-Msg-Id": f"replay:{number}", "Lightningbus-Schema": "Task/2"}


async def test_rollouts_and_events_are_sent_again_where_their_type_belongs(bus: Bus, nats_url: str) -> None:
    alert = Alert(role="store", reason="x", fired_at_ns=1)
    await put_letter(bus, subjects.ALERTS, stream=subjects.ALERTS, payload=encode(alert))
    await dead(nats_url, "replay", "1")
    assert (await bus.js.get_last_msg(subjects.ALERTS, ">")).subject == subjects.ALERT


async def test_a_letter_that_cannot_be_read_hides_no_other(bus: Bus, nats_url: str) -> None:
    await bus.publish_bytes(subjects.dlq("TASKS"), b"\x00", {}, 5)
    number = await put_letter(bus)
    assert [letter["number"] for letter in json.loads(await dead(nats_url, "list", "--json"))] == [number]
    assert "there is no dead letter 1 that can be read" in await dead(nats_url, "show", "1", code=2)
    await dead(nats_url, "delete", "1")


def test_a_flood_stops_the_reader_and_a_trickle_does_not() -> None:
    limit = DlqLimit("the store")
    for _ in range(MAX_CONSECUTIVE):
        limit.record_invalid("x")
    with pytest.raises(DlqLimitExceededError, match="the store stops: 21 of the last 21 messages could not be read"):
        limit.record_invalid("x")
    trickle = DlqLimit("the store")
    for _ in range(WINDOW):
        trickle.record_invalid("x")
        trickle.record_valid()
        trickle.record_valid()
    half = DlqLimit("the store")
    with pytest.raises(DlqLimitExceededError):
        for _ in range(WINDOW):
            half.record_invalid("x")
            half.record_invalid("x")
            half.record_valid()


async def test_what_is_said_of_a_dead_letter_is_bounded_and_a_message_too_large_to_keep_is_buried_without_its_bytes(
    bus: Bus, caplog: pytest.LogCaptureFixture
) -> None:
    await bus.ensure_consumer(runner_consumer("calc", "train"))
    for size in (1000, MAX_BYTES):
        await bus.js.publish("lb.task.train.calc", b"x" * size)
    async with asyncio.timeout(HANG_SECONDS), bus.pull(runner_consumer("calc", "train"), slots=2) as puller:
        for _ in range(2):
            await DeadLetterQueue(bus).add(await anext(puller), "y" * 5_000_000)
    first, second = [letter async for _, letter in DeadLetterQueue(bus).list_letters()]
    assert (len(first.payload), len(second.payload)) == (1000, 0)
    assert len(first.reason) < 3000 and second.reason.endswith(f"its {MAX_BYTES} bytes were too many to keep")
    assert max(len(line.getMessage()) for line in caplog.records) < 4000
    assert (await bus.js.stream_info("TASKS")).state.messages == 0
