"""The grader on a real bus: attempts in, their ends out, once each, with a reward or the reason why there is none."""

import asyncio
import json
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace as replace_spec
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from lightningbus.bus.client import Bus
from lightningbus.bus.dead_letters import DeadLetterQueue
from lightningbus.bus.jetstream.message import Message
from lightningbus.bus.streams.specs import GRADERS, STORE_EVENTS, STORE_TRAIN
from lightningbus.graders import grader
from lightningbus.graders.errors import GraderError
from lightningbus.graders.settings import GraderSettings
from lightningbus.learner.rollouts.assembler import Assembler, Rollout, training_reward
from lightningbus.schemas import ids, subjects
from lightningbus.schemas.base import Outcome
from lightningbus.schemas.grading import GradingRequest, RolloutGraded
from lightningbus.schemas.semconv import attributes
from lightningbus.schemas.spans import SpanBatch
from lightningbus.tasks.task_publisher import TaskPublisher
from tests.factories import batches
from tests.graders.endpoint import greater_of, judging
from tests.polling import HANG_SECONDS
from tests.runners.conftest import running, task
from tests.stream_limits import limit

pytestmark = pytest.mark.integration

FUNCTIONS = Path(__file__).parent / "functions"
SHORT_WAIT_SECONDS = 0.2
BY_COMMAND = {"f": {"function": "scores:by_command"}}


def settings(graders: dict[str, Any], **changes: Any) -> GraderSettings:
    fields = {"graders": graders, "working_dir": FUNCTIONS, "processes": 2, "max_attempts": 1, **changes}
    return GraderSettings.model_validate(fields)


@asynccontextmanager
async def grading(bus: Bus, checked: GraderSettings) -> AsyncIterator[None]:
    """A grader in this process while the block runs."""
    stop = asyncio.Event()
    work = asyncio.create_task(grader.run(bus, checked, stop))
    try:
        yield
    finally:
        stop.set()
        await work


async def finish(bus: Bus, name: str, sample: int, result: Any, samples: int = 1, outcome: Outcome = "ok") -> None:
    """Publish an attempt as a graded runner does: its spans, then the request for its grade."""
    (batch,) = batches(name, sample, None, parts=1, samples=samples, outcome=outcome)
    assert batch.end is not None
    end = replace(batch.end, result=json.dumps(result))
    msg_id = ids.batch_msg_id(batch.execution_id, 0)
    await bus.publish(subjects.TRAIN_ROLLOUT, replace(batch, end=None), msg_id=msg_id)
    request = GradingRequest(ending=replace(batch, spans=(), end=end, sequence=1), input={"answer": 4})
    await bus.publish(subjects.grading("train"), request, msg_id=ids.grading_msg_id(batch.execution_id))


async def ended(bus: Bus, count: int) -> tuple[list[Rollout], list[SpanBatch]]:
    """Attempts as a learner assembles them, and all batches that end one."""
    assembler, rollouts, ends = Assembler(), [], []
    async with asyncio.timeout(HANG_SECONDS), bus.pull(STORE_TRAIN, 64) as puller:
        async for message in puller:
            batch = message.decode_as(SpanBatch)
            await message.ack()
            ends += [batch] if batch.end is not None else []
            if (rollout := assembler.add(batch, message.sequence)) is not None:
                rollouts.append(rollout)
            if len(rollouts) == count:
                return rollouts, ends
    raise AssertionError


async def events(bus: Bus, count: int) -> list[RolloutGraded]:
    messages: list[Message] = []
    async with asyncio.timeout(HANG_SECONDS), bus.pull(STORE_EVENTS, 64) as puller:
        async for message in puller:
            await message.ack()
            if message.subject == subjects.ROLLOUT_GRADED:
                messages.append(message)
            if len(messages) == count:
                return [message.decode_as(RolloutGraded) for message in messages]
    raise AssertionError


async def until_settled(bus: Bus) -> None:
    async with asyncio.timeout(HANG_SECONDS):
        while (await bus.stream_state(subjects.GRADING)).num_messages:
            await asyncio.sleep(0.02)


async def test_a_function_may_run_an_event_loop_for_each_rollout(bus: Bus) -> None:
    for number in range(2):
        await finish(bus, "t", number, 0.75, samples=2)
    async with grading(bus, settings({"f": {"function": "scores:by_loops"}})):
        rollouts, _ = await ended(bus, 2)
    assert [(rollout.outcome, rollout.reward) for rollout in rollouts] == [("ok", 0.75)] * 2


async def test_a_grade_ends_the_attempt_and_a_failed_one_is_an_outcome_and_no_zero(bus: Bus) -> None:
    for number, (result, outcome) in enumerate([("good", "ok"), ("raise", "ok"), ("good", "timeout")]):
        await finish(bus, "t", number, result, samples=3, outcome=outcome)
    async with grading(bus, settings(BY_COMMAND)):
        rollouts, _ = await ended(bus, 3)
        await until_settled(bus)
    good, failed, timeout = sorted(rollouts, key=lambda rollout: rollout.sample_index)
    assert (good.outcome, good.reward, training_reward(good, "zero")) == ("ok", 0.5, 0.5)
    assert (failed.outcome, failed.reward, training_reward(failed, "zero")) == ("grading_failed", None, None)
    assert "no such answer" in failed.error
    assert (timeout.outcome, training_reward(timeout, "zero"), training_reward(timeout, "mask")) == (
        "timeout",
        0.0,
        None,
    )
    graded = {event.rollout_id: event for event in await events(bus, 2)}
    assert (graded["t.0"].reward, graded["t.0"].rewards, graded["t.0"].grading) == (0.5, {"f": 0.5}, "live")
    assert graded["t.1"].reward is None and "no such answer" in graded["t.1"].error
    ((_, letter),) = [each async for each in DeadLetterQueue(bus).list_letters()]
    assert letter.stream == subjects.GRADING and "no such answer" in letter.reason


async def test_a_replayed_letter_gives_another_grade_and_no_second_end(bus: Bus, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    await finish(bus, "t", 0, f"once {marker}")
    async with grading(bus, settings(BY_COMMAND)):
        await events(bus, 1)
        letters = DeadLetterQueue(bus)
        async with asyncio.timeout(HANG_SECONDS):
            while not (sequences := [number async for number, _ in letters.list_letters()]):
                await asyncio.sleep(0.02)
        await letters.replay(sequences[0])
        (event,) = await events(bus, 1)
        await until_settled(bus)
    assert (event.reward, event.error) == (0.5, "")
    (rollout,), ends = await ended(bus, 1)
    assert rollout.outcome == "grading_failed" and len(ends) == 1
    assert (await bus.stream_state(subjects.DLQ)).num_messages == 0


async def test_a_grade_waits_for_room_in_the_stream_of_events_and_is_given_once(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that is away for long, and graders that might be taken for dead, cost no rollout its grade."""
    monkeypatch.setattr(grader, "MAX_DELIVERIES", 1)
    monkeypatch.setattr(grader, "GIVE_BACK_SECONDS", 0.0)
    await limit(bus, subjects.EVENTS, 1)
    await TaskPublisher(bus).publish_task(task(id="other", mode="train"))
    await finish(bus, "t", 0, "good")
    assert Bus.publish.__kwdefaults__ is not None
    monkeypatch.setitem(Bus.publish.__kwdefaults__, "timeout", SHORT_WAIT_SECONDS)
    async with grading(bus, settings(BY_COMMAND)), bus.fleet("grader") as fleet, asyncio.timeout(HANG_SECONDS):
        waiting_since: set[int] = set()
        while len(waiting_since) < 2:  # a second apart: longer than a publisher waits if it is not asked to
            await fleet.wait_for_change()
            waiting_since |= {beat.sent_at_ns for beat in fleet.members() if "waits_for_room" in beat.status}
        await limit(bus, subjects.EVENTS, None)
        (rollout,), ends = await ended(bus, 1)
        await until_settled(bus)
    assert (rollout.outcome, rollout.reward, len(ends)) == ("ok", 0.5, 1), rollout.error
    assert (await bus.stream_state(subjects.DLQ)).num_messages == 0


async def test_rollouts_of_a_group_are_compared_and_judges_calls_are_spans_and_no_rewards_of_calls(bus: Bus) -> None:
    async with judging(greater_of) as endpoint:
        judge = {
            "url": endpoint.url,
            "model": "m",
            "rubric": "more",
            "compare": "pairs",
            "price": {"input": 1.0, "output": 0.0},
        }
        for number, outcome in enumerate(["ok", "ok", "agent_error"]):
            await finish(bus, "t", number, number, samples=3, outcome=outcome)
        async with grading(bus, settings({"j": {"judge": judge}}, id="first")):
            rollouts, ends = await ended(bus, 3)
            with pytest.raises(GraderError, match="grader 'first' runs already"):
                await grader.refuse_second(bus, "second")
    by_sample = sorted(rollouts, key=lambda rollout: rollout.sample_index)
    assert [rollout.reward for rollout in by_sample] == [0.0, 1.0, None]
    assert by_sample[1].rewards == (0.0,), "a grade is no reward of a call"
    (first,) = [batch for batch in ends if batch.sample_index == 0]
    grade, *calls = first.spans
    assert grade.attributes[attributes.REWARD] == 0.0 and first.end is not None and first.end.num_spans == 4
    assert [(call.name, call.parent_span_id) for call in calls] == [("chat m", grade.span_id)] * 2
    assert [call.attributes[attributes.GRADER_COST] for call in calls] == [0.0001] * 2


async def test_a_group_that_stays_incomplete_is_compared_after_its_time(bus: Bus) -> None:
    async with judging(greater_of) as endpoint:
        judge = {"url": endpoint.url, "model": "m", "rubric": "more", "compare": "pairs"}
        for number in range(2):
            await finish(bus, "t", number, number, samples=3)
        async with grading(bus, settings({"j": {"judge": judge}}, group_timeout_seconds=0.5)):
            rollouts, _ = await ended(bus, 2)
    assert sorted(rollout.reward or 0.0 for rollout in rollouts) == [0.0, 1.0]


async def test_a_message_that_nobody_can_read_is_a_dead_letter(bus: Bus) -> None:
    headers = {subjects.SCHEMA_HEADER: "GradingRequest/2", subjects.MSG_ID_HEADER: "x"}
    await bus.publish_bytes(subjects.grading("train"), b"no", headers, 10)
    async with grading(bus, settings(BY_COMMAND)):
        await until_settled(bus)
    ((_, letter),) = [each async for each in DeadLetterQueue(bus).list_letters()]
    assert "GradingRequest is not" in letter.reason


async def test_the_runner_leaves_the_reward_to_graders(bus: Bus) -> None:
    """From the task to the end: the agent's number is its result, and a grader makes a reward of it."""
    async with running(bus, entrypoint="graders:solve", graded=True), grading(bus, settings(BY_COMMAND)):
        await TaskPublisher(bus).publish_task(task(id="t", mode="train", input={"answer": "good"}))
        (rollout,), (end,) = await ended(bus, 1)
    assert (rollout.outcome, rollout.reward) == ("ok", 0.5), rollout.error
    assert end.end is not None and end.end.rewards["f"] == 0.5


@pytest.mark.long
async def test_a_grader_that_is_killed_again_and_again_loses_nothing_and_grades_nothing_twice(
    bus: Bus, nats_url: str, tmp_path: Path
) -> None:
    num_rollouts, num_kills = 150, 6
    await bus.ensure_consumer(replace_spec(GRADERS, ack_wait=1.0))
    for number in range(num_rollouts):
        await finish(bus, f"t{number}", 0, number)
    checked = settings({"f": {"function": "scores:slow"}}, concurrency=8)
    (tmp_path / "grader.json").write_text(checked.model_dump_json())
    command = [sys.executable, "-m", "lightningbus", "grader", "--bus", nats_url, "--settings"]

    async def start() -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(*command, str(tmp_path / "grader.json"))

    process = await start()
    rollouts: list[Rollout] = []
    ends: Counter[str] = Counter()
    assembler, num_killed = Assembler(), 0
    try:
        async with asyncio.timeout(HANG_SECONDS), bus.pull(STORE_TRAIN, 64) as puller:
            async for message in puller:
                batch = message.decode_as(SpanBatch)
                await message.ack()
                ends[batch.execution_id] += batch.end is not None
                if (rollout := assembler.add(batch, message.sequence)) is not None:
                    rollouts.append(rollout)
                if num_killed < num_kills and len(rollouts) > (num_killed + 1) * 15:
                    process.send_signal(signal.SIGKILL)
                    await process.wait()
                    process, num_killed = await start(), num_killed + 1
                if len(rollouts) == num_rollouts:
                    break
        await until_settled(bus)
    finally:
        process.kill()
        await process.wait()
    assert num_killed == num_kills
    assert {rollout.task_id: rollout.reward for rollout in rollouts} == {
        f"t{number}": number / 100 + 0.001 for number in range(num_rollouts)
    }
    assert {*ends.values()} == {1}
    assert len({event.execution_id for event in await events(bus, num_rollouts)}) == num_rollouts
    assert (await bus.stream_state(subjects.DLQ)).num_messages == 0
