"""Tasks that go on from recorded calls, and the agent that answers them."""

import json
from pathlib import Path

from lightningbus.analysis.replay import write_prompts
from lightningbus.bus.client import Bus
from lightningbus.learner.rollouts.assembler import build_rollout
from lightningbus.tasks.recorded_prompts import LIMITS
from lightningbus.tasks.task_loading import load_tasks
from lightningbus.tasks.task_publisher import TaskPublisher
from tests.factories import model_call, rollout
from tests.runners.conftest import ScriptedEngine, calls_of, ended, running, task

ANSWER = "lightningbus.tasks.recorded_prompts:answer"


async def test_recorded_calls_are_answered_again_from_their_very_tokens(
    bus: Bus, engine: ScriptedEngine, tmp_path: Path
) -> None:
    """What an agent said, as recorded, becomes tasks; no agent of the user's runs for their answers."""
    async with running(bus, entrypoint="plain:chats"):
        await TaskPublisher(bus).publish_task(task(id="first"))
        (recorded,) = await ended(bus)
    calls = calls_of(recorded)
    assert recorded.end is not None and recorded.end.outcome == "ok" and len(calls) == 2
    path = tmp_path / "states.jsonl"
    assert write_prompts(path, [build_rollout([recorded], 1, 1)]) == 2
    async with running(bus, entrypoint=ANSWER, concurrency=2, max_concurrent_per_process=2):
        for state in load_tasks(path):
            await TaskPublisher(bus).publish_task(task(id=state.id, input=state.input))
        attempts = await ended(bus, 2)
    assert [batch.end and (batch.end.outcome, batch.end.reward) for batch in attempts] == [("ok", 0.0)] * 2
    again = {calls_of(batch)[0].prompt_ids for batch in attempts}
    assert again == {call.prompt_ids for call in calls}


def test_a_task_has_the_limits_of_its_call(tmp_path: Path) -> None:
    """The newer name of a limit is that of completions here, and what is no limit stays behind."""
    fields = {"max_completion_tokens": 7, "stop": ["\n"], "temperature": 0.3, "messages": []}
    call = model_call(0, [5, 6], [7], request=json.dumps(fields))
    path = tmp_path / "states.jsonl"
    write_prompts(path, [rollout("t", 0, 1.0, calls=[call])])
    (state,) = load_tasks(path)
    assert state.input == {"prompt_ids": [5, 6], "max_tokens": 7, "stop": ["\n"]}
    assert set(state.input) - {"prompt_ids"} <= set(LIMITS)
