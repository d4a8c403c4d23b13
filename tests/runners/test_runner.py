"""A runner against a real bus, with a scripted engine that speaks vLLM's protocol: faults on demand."""

import asyncio
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from lightningbus.bus.client import Bus
from lightningbus.bus.dead_letters import DeadLetterQueue
from lightningbus.bus.errors import DlqLimitExceededError
from lightningbus.bus.streams.specs import STORE_EVENTS, runner_consumer
from lightningbus.runners import runner
from lightningbus.runners.agent.launcher import AgentStartError
from lightningbus.runners.settings import RunnerSettings
from lightningbus.schemas.codec import encode, schema_of
from lightningbus.schemas.tasks import Task, TaskBatchRecord, TaskRecord
from lightningbus.tasks.task_publisher import TaskPublisher
from tests.polling import HANG_SECONDS
from tests.runners.conftest import AGENTS, ScriptedEngine, calls_of, ended, running, task
from tests.stream_limits import limit


@pytest.mark.parametrize("fault", ["409", "429", "502", "503", "504"])
async def test_a_call_is_held_and_asked_again_and_the_agent_never_notices(
    bus: Bus, engine: ScriptedEngine, fault: str
) -> None:
    engine.faults = [fault, fault]
    async with running(bus, entrypoint="plain:asks"):
        await TaskPublisher(bus).publish_task(task())
        (batch,) = await ended(bus)
    assert batch.end is not None and (batch.end.outcome, batch.end.error) == ("ok", "")
    calls = calls_of(batch)
    assert len(engine.requests) == 3 and len(calls) == 1
    assert calls[0].response_ids == b"\7\0\0\0\x08\0\0\0"
    assert all(request["logprobs"] is True and request["return_token_ids"] for request in engine.requests)


@pytest.mark.parametrize("agent", ["asks", "streams"])
async def test_an_answer_that_breaks_off_goes_on_from_the_tokens_already_made(
    bus: Bus, engine: ScriptedEngine, agent: str
) -> None:
    engine.faults = ["break", "503"]
    async with running(bus, entrypoint=f"plain:{agent}"):
        await TaskPublisher(bus).publish_task(task())
        (batch,) = await ended(bus)
    assert batch.end is not None and (batch.end.outcome, batch.end.reward) == ("ok", 1.0), batch.end
    (call,) = calls_of(batch)
    assert call.prompt_ids == b"\1\0\0\0\2\0\0\0" and call.response_ids == b"\7\0\0\0\x08\0\0\0"
    assert [(run.version, run.start, run.end) for run in call.weight_versions] == [(3, 0, 1), (4, 1, 2)]
    assert np.frombuffer(call.logprobs, "<f4").tolist() == [-0.5, -0.25]
    assert engine.requests[-1]["prompt"] == [1, 2, 7] and engine.requests[-1]["temperature"] == 0.9


@pytest.mark.parametrize("agent", ["asks", "streams", "asks_for_usage"])
async def test_an_answer_whose_stream_breaks_off_after_its_last_token_is_not_gone_on_with(
    bus: Bus, engine: ScriptedEngine, agent: str
) -> None:
    engine.faults = ["break at the end"]
    async with running(bus, entrypoint=f"plain:{agent}"):
        await TaskPublisher(bus).publish_task(task())
        (batch,) = await ended(bus)
    assert batch.end is not None and (batch.end.outcome, batch.end.reward) == ("ok", 1.0), batch.end
    (call,) = calls_of(batch)
    assert call.response_ids == b"\7\0\0\0\x08\0\0\0" and call.finish_reason == "stop"
    assert len(engine.requests) == 1


async def test_an_answer_that_only_the_whole_engine_can_make_begins_anew(bus: Bus, engine: ScriptedEngine) -> None:
    engine.faults = ["break"]
    async with running(bus, entrypoint="plain:streams_with_tools"):
        await TaskPublisher(bus).publish_task(task())
        (batch,) = await ended(bus)
    assert batch.end is not None and (batch.end.outcome, batch.end.reward) == ("ok", 1.0), batch.end
    (call,) = calls_of(batch)
    assert [(run.version, run.start, run.end) for run in call.weight_versions] == [(4, 0, 2)]
    assert [request["tools"] for request in engine.requests] == [engine.requests[0]["tools"]] * 2


async def test_what_the_engine_refuses_the_agent_is_told(bus: Bus, engine: ScriptedEngine) -> None:
    engine.faults = ["400"]
    async with running(bus, entrypoint="plain:asks"):
        await TaskPublisher(bus).publish_task(task())
        (batch,) = await ended(bus)
    assert batch.end is not None and batch.end.outcome == "agent_error"
    assert "BadRequestError" in batch.end.error
    assert len(engine.requests) == 1


@pytest.mark.long
async def test_no_node_until_the_deadline_is_infra_and_tried_again(bus: Bus) -> None:
    async with running(bus, entrypoint="plain:asks"):
        await TaskPublisher(bus).publish_task(task(deadline=6.0, max_attempts=2))
        first, batch = await ended(bus, 2, final=None)
    assert first.end is not None and (first.end.outcome, first.end.is_final) == ("infra_error", False), (
        "each try is on record"
    )
    assert (first.attempt, batch.attempt) == (1, 2)
    assert batch.end is not None and (batch.end.outcome, batch.end.reward) == ("infra_error", None)
    assert "no inference node is ready until the rollout's deadline" in batch.end.error or "no model" in batch.end.error


async def test_a_pin_nobody_serves_names_the_version_and_what_is_served(bus: Bus, engine: ScriptedEngine) -> None:
    async with running(bus, entrypoint="plain:asks"):
        await TaskPublisher(bus).publish_task(task(deadline=6.0, max_attempts=1, weight_versions={"policy": 99}))
        (batch,) = await ended(bus)
    assert batch.end is not None and batch.end.outcome == "infra_error"
    assert "no inference node serves version 99 of 'policy', to which the task is pinned (served: 3)" in batch.end.error
    assert engine.requests == []


async def test_the_sampling_of_a_task_wins_over_the_agents(bus: Bus, engine: ScriptedEngine) -> None:
    async with running(bus, entrypoint="plain:asks"):
        await TaskPublisher(bus).publish_task(task(sampling_params={"temperature": 0.0, "seed": 7}))
        (batch,) = await ended(bus)
    assert engine.requests[0]["temperature"] == 0.0 and engine.requests[0]["seed"] == 7
    (call,) = calls_of(batch)
    assert call.sampling_params["temperature"] == 0.0


async def test_an_agent_is_told_nothing_of_ours_and_keeps_its_client(
    bus: Bus, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIGHTNINGBUS_BUS", "nats://user:secret@127.0.0.1:1")
    async with running(bus, entrypoint="plain:keeps_its_client"):
        for number in range(3):
            await TaskPublisher(bus).publish_task(task(id=f"t{number}"))
        batches = await ended(bus, 3)
    assert [batch.end.outcome for batch in batches if batch.end] == ["ok"] * 3, [b.end for b in batches]


async def test_an_async_agent_a_reward_function_and_a_command(bus: Bus, engine: ScriptedEngine) -> None:
    async with running(bus, entrypoint="plain:asks_async", reward_fn="plain:half", agent_name="one"):
        await TaskPublisher(bus).publish_task(task(agent="one", input={"n": 1}))
        (batch,) = await ended(bus)
        assert batch.end is not None and (batch.end.outcome, batch.end.reward) == ("ok", 0.5), batch.end
    async with running(bus, command=[sys.executable, "program.py"], agent_name="two"):
        await TaskPublisher(bus).publish_task(task(id="u", agent="two", input={"n": 3}))
        (batch,) = await ended(bus)
        assert batch.end is not None and (batch.end.outcome, batch.end.reward) == ("ok", 3.0), batch.end


async def test_a_relative_interpreter_is_found_from_here_and_not_from_the_agents_folder(
    bus: Bus, engine: ScriptedEngine
) -> None:
    async with running(
        bus,
        entrypoint="plain:asks_async",
        reward_fn="plain:half",
        python_executable=Path(os.path.relpath(sys.executable)),
    ):
        await TaskPublisher(bus).publish_task(task(input={"n": 1}))
        (batch,) = await ended(bus)
    assert batch.end is not None and (batch.end.outcome, batch.end.reward) == ("ok", 0.5), batch.end


async def test_a_key_of_another_process_is_refused(bus: Bus, engine: ScriptedEngine) -> None:
    async with running(bus, entrypoint="plain:asks_with_a_wrong_key"):
        await TaskPublisher(bus).publish_task(task())
        (batch,) = await ended(bus)
    assert batch.end is not None and "AuthenticationError" in batch.end.error
    assert engine.requests == []


async def test_an_agent_that_dies_is_an_agent_error_and_the_next_rollout_works(
    bus: Bus, engine: ScriptedEngine
) -> None:
    async with running(bus, entrypoint="plain:dies_on_demand"):
        await TaskPublisher(bus).publish_task(task(id="a", input={"die": True}))
        await TaskPublisher(bus).publish_task(task(id="b", input={}))
        batches = await ended(bus, 2)
    outcomes = {batch.task_id: batch.end.outcome for batch in batches if batch.end}
    assert outcomes == {"a": "agent_error", "b": "ok"}


async def test_stopping_gives_back_what_is_not_finished_and_says_so(
    bus: Bus, engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await bus.ensure_consumer(runner_consumer("default", "eval"))
    async with running(bus, entrypoint="plain:sleeps", drain_timeout_seconds=0) as stop:
        await TaskPublisher(bus).publish_task(task())
        info = bus.js.consumer_info
        async with asyncio.timeout(HANG_SECONDS):
            while (await info("TASKS", "runner-default-eval")).num_ack_pending == 0:
                await asyncio.sleep(0.02)
        stop.set()
    assert "0 rollouts done, 1 given back" in caplog.text
    async with running(bus, entrypoint="plain:asks"):
        first, batch = await ended(bus, 2, final=None)
    assert first.end is not None and (first.end.outcome, first.end.is_final) == ("preempted", False)
    assert batch.attempt == 2 and batch.end is not None and batch.end.outcome == "ok"


async def test_a_task_that_kills_every_runner_is_poisoned_a_dead_letter_and_its_groups_last_word(
    bus: Bus, engine: ScriptedEngine
) -> None:
    await bus.ensure_consumer(runner_consumer("default", "eval"))
    await TaskPublisher(bus).publish_task(task(max_attempts=2))
    async with bus.pull(runner_consumer("default", "eval"), slots=1) as dying:
        for _ in range(2):
            await (await asyncio.wait_for(anext(dying), HANG_SECONDS)).nak()
    async with running(bus, entrypoint="plain:asks"):
        (batch,) = await ended(bus)
        assert batch.end is not None and (batch.end.outcome, batch.end.reward) == ("poison", None)
        async with asyncio.timeout(HANG_SECONDS):
            while (await bus.js.stream_info("TASKS")).state.messages:
                await asyncio.sleep(0.02)
        ((number, letter),) = [actual async for actual in DeadLetterQueue(bus).list_letters()]
        assert letter.num_delivered == 3 and "2 runners took this task" in letter.reason
        await DeadLetterQueue(bus).replay(number)
        (again,) = await ended(bus)
    assert again.attempt == 4 and again.end is not None and again.end.outcome == "ok"


async def test_the_last_problem_is_gone_after_a_rollout_that_ends_well(bus: Bus, engine: ScriptedEngine) -> None:
    async def wait_for(num_done: int) -> bool:
        """Wait for so many rollouts in the heartbeat; return whether that has a problem."""
        async with asyncio.timeout(HANG_SECONDS):
            while [beat.status.get("done") for beat in fleet.members()] != [num_done]:
                await fleet.wait_for_change()
        return "last_problem" in fleet.members()[0].status

    async with bus.fleet("runner") as fleet, running(bus, entrypoint="plain:dies_on_demand"):
        await TaskPublisher(bus).publish_task(task(id="a", input={"die": True}, max_attempts=1))
        assert await wait_for(1)
        await TaskPublisher(bus).publish_task(task(id="b", input={}))
        assert not await wait_for(2)


async def test_the_group_of_an_unreadable_task_learns_of_it(bus: Bus, engine: ScriptedEngine) -> None:
    unreadable = msgpack.packb({"id": "t", "run_id": "run", "agent": "default", "sample_index": 3, "mode": "eval"})
    await bus.js.publish("lb.task.eval.default", unreadable, headers={"Lightningbus-Schema": schema_of(Task)})
    async with running(bus, entrypoint="plain:asks"):
        (batch,) = await ended(bus)
    assert batch.end is not None and batch.end.outcome == "poison" and "`input`" in batch.end.error
    assert (batch.rollout_id, batch.sample_index) == ("t.3", 3)


async def test_a_task_of_another_schema_version_is_refused_and_its_dead_letter_says_why(
    bus: Bus, engine: ScriptedEngine
) -> None:
    for number, schema in enumerate(("Task/1", "Heartbeat/2", "")):
        headers = {"Lightningbus-Schema": schema} if schema else {}
        await bus.js.publish("lb.task.eval.default", encode(task(id=f"t{number}")), headers=headers)
    async with running(bus, entrypoint="plain:asks"):
        batches = await ended(bus, 3)
    assert {batch.end.outcome for batch in batches if batch.end} == {"poison"} and not engine.requests
    reasons = [letter.reason async for _, letter in DeadLetterQueue(bus).list_letters()]
    assert reasons == [
        "Task has schema version 1; this reader knows 2",
        "this is not a Task: its Lightningbus-Schema header says 'Heartbeat/2'",
        "this is not a Task: its Lightningbus-Schema header says 'nothing'",
    ]


async def test_a_task_of_another_publisher_is_recorded_once_and_its_trace_is_linked(
    bus: Bus, engine: ScriptedEngine
) -> None:
    trace, span = 32 * "a", 16 * "b"
    headers = {"Lightningbus-Schema": schema_of(Task), "traceparent": f"00-{trace}-{span}-01"}
    await bus.js.publish("lb.task.eval.default", encode(task(id="foreign")), headers=headers)
    await TaskPublisher(bus).publish_task(task(id="ours"))
    async with running(bus, entrypoint="plain:asks"):
        await ended(bus, 2)
    records: list[TaskRecord] = []
    async with bus.pull(STORE_EVENTS, slots=4) as puller, asyncio.timeout(HANG_SECONDS):
        while len(records) < 2:
            event = (await anext(puller)).event()
            assert isinstance(event, TaskBatchRecord)
            records += event.tasks
    assert (await bus.js.stream_info("EVENTS")).state.messages == 2
    links = {record.rollout_id: record.span.links for record in records}
    assert links == {"ours.0": (), "foreign.0": ({"trace_id": trace, "span_id": span},)}


async def test_a_flood_of_unreadable_tasks_stops_the_runner_and_leaves_them_in_the_queue(
    bus: Bus, engine: ScriptedEngine
) -> None:
    for _ in range(60):
        await bus.js.publish("lb.task.eval.default", b"\xc1")
    with pytest.raises(DlqLimitExceededError, match="could not be read"):
        async with asyncio.timeout(HANG_SECONDS):
            await runner.run(bus, RunnerSettings(entrypoint="plain:asks", working_dir=AGENTS), asyncio.Event())
    assert (await bus.js.stream_info("TASKS")).state.messages >= 60 - 22


async def test_a_finished_rollout_waits_for_room_and_meanwhile_no_other_is_begun(
    bus: Bus, engine: ScriptedEngine
) -> None:
    for id in "abc":
        await TaskPublisher(bus).publish_task(task(id=id))
    await limit(bus, "EVAL_ROLLOUTS", 1)
    async with running(bus, entrypoint="plain:asks", ack_wait=2.0), bus.fleet("runner") as fleet:
        async with asyncio.timeout(HANG_SECONDS):
            while not any(beat.status.get("waits_for_room") == "lb.rollout.eval" for beat in fleet.members()):
                await fleet.wait_for_change()
        assert len(engine.requests) == 2
        assert (await bus.js.consumer_info("TASKS", "runner-default-eval")).num_ack_pending == 1
        await limit(bus, "EVAL_ROLLOUTS", None)
        batches = await ended(bus, 3)
    assert sorted((batch.task_id, batch.attempt) for batch in batches) == [("a", 1), ("b", 1), ("c", 1)], (
        "leases are kept"
    )


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"entrypoint": "nothing:solve"}, "No module named 'nothing'"),
        ({"entrypoint": "plain:nothing"}, "has no attribute 'nothing'"),
        ({"entrypoint": "plain:asks", "python_executable": "/no/python"}, "/no/python cannot be started"),
        ({"entrypoint": "plain:asks", "working_dir": "/no/where"}, "cannot be started in /no/where"),
    ],
)
async def test_an_agent_that_cannot_start_is_one_sentence(bus: Bus, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(AgentStartError, match=sentence):
        async with asyncio.timeout(HANG_SECONDS):
            checked = RunnerSettings.model_validate({"working_dir": AGENTS, **settings})
            await runner.run(bus, checked, asyncio.Event())


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (["pyhton", "agent.py"], "pyhton is no program in PATH"),
        (["./agent"], r"\./agent is no program in .*agents"),
        (["plain.py"], r"plain\.py is no program in PATH"),
    ],
)
async def test_a_mistyped_command_is_found_before_any_task_is_taken(
    bus: Bus, command: list[str], sentence: str
) -> None:
    await bus.ensure_consumer(runner_consumer("default", "eval"))
    await TaskPublisher(bus).publish_task(task())
    with pytest.raises(AgentStartError, match=sentence):
        async with asyncio.timeout(HANG_SECONDS):
            await runner.run(bus, RunnerSettings(command=command, working_dir=AGENTS), asyncio.Event())
    assert (await bus.backlog(runner_consumer("default", "eval"))).num_delivered == 0


async def test_an_agent_that_cannot_be_imported_is_found_before_any_task_is_taken(bus: Bus) -> None:
    await bus.ensure_consumer(runner_consumer("default", "eval"))
    await TaskPublisher(bus).publish_task(task())
    with pytest.raises(AgentStartError, match="No module named 'agnet'"):
        async with asyncio.timeout(HANG_SECONDS):
            await runner.run(bus, RunnerSettings(entrypoint="agnet:solve", working_dir=AGENTS), asyncio.Event())
    assert (await bus.backlog(runner_consumer("default", "eval"))).num_delivered == 0


async def test_a_runner_killed_gives_its_task_to_another(bus: Bus, nats_url: str, engine: ScriptedEngine) -> None:
    await bus.ensure_consumer(runner_consumer("default", "eval", 1.0))
    command = [sys.executable, "-m", "lightningbus", "runner", "--bus", nats_url, "--entrypoint", "plain:sleeps"]
    process = await asyncio.create_subprocess_exec(
        *command, "--working-dir", str(AGENTS), "-n", "1", start_new_session=True, stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    while b"takes tasks" not in await process.stderr.readline():
        assert process.returncode is None
    await TaskPublisher(bus).publish_task(task())
    async with asyncio.timeout(HANG_SECONDS):
        while (await bus.js.consumer_info("TASKS", "runner-default-eval")).num_ack_pending == 0:
            await asyncio.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    await process.wait()
    async with running(bus, entrypoint="plain:asks", ack_wait=1.0):
        (batch,) = await ended(bus)
    assert batch.attempt == 2 and batch.end is not None and batch.end.outcome == "ok"
