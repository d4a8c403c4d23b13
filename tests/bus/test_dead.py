"""Dead letters from the command line: seen, sent again, dropped; and the flood that is not buried."""

import asyncio
import json
import sys

import pytest

from bus import Bus, DeadLetters, PoisonFlood, PoisonLimit, runner_tasks
from bus.poison import IN_A_ROW, WINDOW
from schemas import subjects
from schemas.codec import MAX_BYTES
from schemas.events import Task


async def dead(nats_url: str, *arguments: str, code: int = 0) -> str:
    """``lightningbus dead …``; its output, or its error if it is to fail."""
    process = await asyncio.create_subprocess_exec(
        *[sys.executable, "-m", "lightningbus", "dead", *arguments, "--bus", nats_url],
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode == code, err.decode()
    return (err if code else out).decode()


async def bury(bus: Bus, count: int) -> None:
    """Tasks delivered twice, then given up."""
    await bus.ensure(runner_tasks("calc"))
    for number in range(count):
        await bus.publish_task(Task(id=f"t{number}", run="r", agent="calc", input={"n": number}))
    async with bus.pull(runner_tasks("calc"), slots=count) as puller:
        for _ in range(count):
            await (await asyncio.wait_for(anext(puller), 5)).nak()
        for _ in range(count):
            await bus.bury(await asyncio.wait_for(anext(puller), 5), "poisoned: nobody lived")
    assert (await bus.js.stream_info(subjects.TASKS)).state.messages == 0


async def test_letters_are_listed_and_shown(bus: Bus, nats_url: str) -> None:
    assert "there is no dead letter" in await dead(nats_url, "list")
    await bury(bus, 2)
    listed = json.loads(await dead(nats_url, "list", "--json"))
    assert [(one["stream"], one["deliveries"], one["reason"]) for one in listed] == [
        ("TASKS", 2, "poisoned: nobody lived")
    ] * 2
    assert "poisoned: nobody lived" in await dead(nats_url, "list")
    shown = json.loads(await dead(nats_url, "show", str(listed[0]["number"])))
    assert shown["message"]["input"] == {"n": 0} and shown["headers"]["Nats-Msg-Id"] == "task:t0.0"


async def test_a_letter_sent_again_is_a_task_that_goes_on_counting(bus: Bus, nats_url: str) -> None:
    await bury(bus, 2)
    first, second = [number async for number, _ in DeadLetters(bus).all()]
    assert "1 sent again" in await dead(nats_url, "replay", str(first))
    async with bus.pull(runner_tasks("calc"), slots=1) as puller:
        again = await asyncio.wait_for(anext(puller), 5)
        assert again.as_(Task).earlier_attempts == 2 and again.deliveries == 1
        await again.ack(sync=True)
    assert [number async for number, _ in DeadLetters(bus).all()] == [second]


async def test_letters_are_dropped_and_a_wrong_number_is_one_sentence(bus: Bus, nats_url: str) -> None:
    await bury(bus, 2)
    assert "2 dropped" in await dead(nats_url, "drop", "--stream", "TASKS")
    assert [letter async for letter in DeadLetters(bus).all()] == []
    assert "there is no dead letter 9" in await dead(nats_url, "replay", "9", code=2)
    assert "give the numbers" in await dead(nats_url, "drop", code=2)


def test_a_flood_stops_the_reader_and_a_trickle_does_not() -> None:
    limit = PoisonLimit("the store")
    for _ in range(IN_A_ROW):
        limit.bad("x")
    with pytest.raises(PoisonFlood, match="the store stops: 21 of the last 21 messages could not be read"):
        limit.bad("x")
    trickle = PoisonLimit("the store")
    for _ in range(WINDOW):
        trickle.bad("x")
        trickle.good()
        trickle.good()
    half = PoisonLimit("the store")
    with pytest.raises(PoisonFlood):
        for _ in range(WINDOW):
            half.bad("x")
            half.bad("x")
            half.good()


async def test_what_is_said_of_a_dead_letter_is_bounded_and_a_message_too_large_to_keep_is_buried_without_its_bytes(
    bus: Bus, caplog: pytest.LogCaptureFixture
) -> None:
    await bus.ensure(runner_tasks("calc"))
    for size in (1000, MAX_BYTES):
        await bus.js.publish("lb.task.eval.calc", b"x" * size)
    async with asyncio.timeout(30), bus.pull(runner_tasks("calc"), slots=2) as puller:
        for _ in range(2):
            await bus.bury(await anext(puller), "y" * 5_000_000)
    first, second = [letter async for _, letter in DeadLetters(bus).all()]
    assert (len(first.payload), len(second.payload)) == (1000, 0)
    assert len(first.reason) < 3000 and second.reason.endswith(f"its {MAX_BYTES} bytes were too many to keep")
    assert max(len(line.getMessage()) for line in caplog.records) < 4000
    assert (await bus.js.stream_info("TASKS")).state.messages == 0
