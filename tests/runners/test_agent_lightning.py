"""Agents of Agent Lightning, as they are: those of 0.3 and 1.0, in processes of the runner."""

import os
from pathlib import Path
from typing import Any

import pytest

from lightningbus.bus.client import Bus
from lightningbus.bus.streams.specs import STORE_EVAL, STORE_TRAIN
from lightningbus.runners.agent.factory import make_executors
from lightningbus.runners.agent.launcher import AgentStartError
from lightningbus.runners.agent.process import ProcessWatchdog
from lightningbus.runners.gateway.slot import Slot
from lightningbus.runners.recording.agent_events import EventContext, convert_event
from lightningbus.runners.settings import RunnerSettings
from lightningbus.schemas.semconv.rewards import extract_rewards
from lightningbus.tasks.task_publisher import TaskPublisher
from tests.runners.conftest import AGENTS, ScriptedEngine, calls_of, ended, running, task

LIGHTNING = AGENTS / "lightning"
REAL = Path(os.environ.get("AGENTLIGHTNING_PYTHON", "/nowhere"))
"""The interpreter of an environment with agentlightning 0.3 (800 MB), for the same tests with the real package."""
SHAPE = {"working_dir": LIGHTNING, "env": [f"PYTHONPATH={LIGHTNING / 'shape'}"]}
PACKAGE = {"working_dir": LIGHTNING, "python_executable": REAL, "env": ["LITELLM_LOCAL_MODEL_COST_MAP=True"]}
AGENTLIGHTNING = [
    pytest.param(SHAPE, id="shape"),
    pytest.param(PACKAGE, id="package", marks=pytest.mark.skipif(not REAL.exists(), reason="AGENTLIGHTNING_PYTHON")),
]


@pytest.mark.parametrize("where", AGENTLIGHTNING)
@pytest.mark.parametrize(
    ("entrypoint", "changes", "reward"),
    [
        ("lit:Solver", {"mode": "train"}, 0.25),
        ("lit:generous", {"mode": "train"}, 0.75),
        ("lit:Solver", {"sampling_params": {"temperature": 0.0}}, 1.0),
        ("lit:Asynchronous", {}, 1.0),
        ("lit:is_told_its_rollout", {}, 1.0),
    ],
)
async def test_an_agent_of_agent_lightning_runs_as_it_is(
    bus: Bus, engine: ScriptedEngine, where: dict[str, Any], entrypoint: str, changes: dict[str, Any], reward: float
) -> None:
    async with running(bus, entrypoint=entrypoint, **where):
        await TaskPublisher(bus).publish_task(task(**changes))
        (batch,) = await ended(bus, consumer=STORE_TRAIN if changes.get("mode") == "train" else STORE_EVAL)
    assert batch.end is not None and (batch.end.outcome, batch.end.reward) == ("ok", reward), batch.end
    (call,) = calls_of(batch)
    assert call.model == "policy" and call.sampling_params.get("temperature") == changes.get("sampling_params", {}).get(
        "temperature"
    )


@pytest.mark.parametrize("where", AGENTLIGHTNING)
async def test_an_emitted_reward_is_the_rollouts(bus: Bus, engine: ScriptedEngine, where: dict[str, Any]) -> None:
    async with running(bus, entrypoint="lit:emits", **where):
        for number, rewards in enumerate(([0.1, 0.5], [1])):
            await TaskPublisher(bus).publish_task(task(id=f"t{number}", input={"rewards": rewards}))
        batches = {batch.task_id: batch for batch in await ended(bus, 2)}
    assert {id: batch.end.reward for id, batch in batches.items() if batch.end} == {"t0": 0.5, "t1": 1.0}
    for batch in batches.values():
        assert batch.end is not None and batch.end.reward_span in {span.span_id for span in batch.spans}


async def test_spans_instead_of_a_reward_are_searched_for_the_last_reward(bus: Bus, engine: ScriptedEngine) -> None:
    async with running(bus, entrypoint="lit:ReturnsSpans", **SHAPE):
        await TaskPublisher(bus).publish_task(task())
        (batch,) = await ended(bus)
    assert batch.end is not None and batch.end.reward == 0.75, batch.end


async def test_a_decorated_function_that_only_emits_needs_no_tracer_of_its_own(bus: Bus) -> None:
    async with running(bus, entrypoint="lit:plain", **SHAPE):
        await TaskPublisher(bus).publish_task(task())
        (batch,) = await ended(bus)
    assert batch.end is not None and batch.end.reward == 0.5, batch.end


async def test_an_agent_of_1_0_finds_its_task_in_variables_and_posts_its_reward(
    bus: Bus, engine: ScriptedEngine
) -> None:
    question = {"question": "1 + 1?", "golden_answers": [2, "two"], "path": "not the path"}
    async with running(bus, entrypoint="variables:Agent", working_dir=LIGHTNING):
        await TaskPublisher(bus).publish_task(task(input=question))
        (batch,) = await ended(bus)
    assert batch.end is not None and (batch.end.outcome, batch.end.reward) == ("ok", 0.75), batch.end
    assert [call.model for call in calls_of(batch)] == ["policy"]
    names = [span.name for span in batch.spans]
    assert names[-3:-1] == ["agentlightning.note", "agentlightning.reward"]


async def test_the_variables_of_a_task_end_with_its_rollout(bus: Bus) -> None:
    async with running(bus, entrypoint="variables:Remembers", working_dir=LIGHTNING):
        for fields in ({"case": "first", "extra": 1}, {"case": "second"}):
            await TaskPublisher(bus).publish_task(task(id=fields["case"], input=fields))
        rewards = {batch.task_id: batch.end.reward for batch in await ended(bus, 2) if batch.end}
    assert rewards == {"first": 0.0, "second": 1.0}


PROMPTS = """
import agentlightning as agl


def prompts(task, prompt_template):
    return 1.0


prompts = agl.rollout(prompts)


def solve(task, llm):
    return 1.0


def nothing():
    return 1.0


def score(input):
    return 1.0


async def shares(task):
    return 1.0


answer = 42
"""


@pytest.mark.parametrize(
    ("agent", "sentence"),
    [
        ({"entrypoint": "lit:Demanding"}, "nothing fills the parameter 'database': the call is Demanding()"),
        ({"entrypoint": "lit:Nothing"}, "Nothing has neither rollout nor rollout_async"),
        ({"entrypoint": "variables:Nothing"}, "the class Nothing has no run(), and is no LitAgent"),
        ({"entrypoint": "prompts:prompts"}, "nothing fills the parameter 'prompt_template': the call is prompts(task)"),
        ({"entrypoint": "prompts:solve"}, "nothing fills the parameter 'llm': the call is solve(task)"),
        ({"entrypoint": "prompts:nothing"}, "too many positional arguments: the call is nothing(task)"),
        ({"entrypoint": "prompts:answer"}, "it is not a function, but of type int"),
        ({"entrypoint": "prompts:solve", "reward_fn": "prompts:score"}, "nothing fills the parameter 'llm'"),
        ({"entrypoint": "lit:plain", "reward_fn": "prompts:score"}, "the call is score(input, result)"),
        ({"entrypoint": "prompts:shares", "max_concurrent_per_process": 2}, "the call is shares(task, endpoint)"),
    ],
)
@pytest.mark.integration
async def test_what_cannot_be_called_is_refused_before_any_rollout(
    tmp_path: Path, agent: dict[str, Any], sentence: str
) -> None:
    (tmp_path / "prompts.py").write_text(PROMPTS)
    paths = f"PYTHONPATH={LIGHTNING / 'shape'}:{LIGHTNING}"
    settings = RunnerSettings.model_validate({**agent, "working_dir": tmp_path, "env": [paths], "concurrency": 1})
    (executor,) = make_executors(settings, [Slot(0, "http://127.0.0.1:9").environment], ProcessWatchdog(), {})
    with pytest.raises(AgentStartError) as refused:
        await executor.start()
    await executor.stop()
    assert sentence in str(refused.value)


def test_an_event_becomes_a_span_and_a_reward_its_reward() -> None:
    reward, note = (
        convert_event({"event_type": kind, "data": {"value": 0.5}}, EventContext("r", "root", number, 0, 7))
        for number, kind in enumerate(("reward", "note"))
    )
    assert list(extract_rewards(reward)) == [0.5] and not list(extract_rewards(note))
    assert reward.span_id != note.span_id and (note.start_ns, note.parent_span_id) == (7, "root")


@pytest.mark.parametrize("body", [{"event_type": ""}, {"event_type": "a", "data": 1}, {"event_type": "reward"}])
def test_what_is_no_event_is_refused_in_a_sentence(body: object) -> None:
    with pytest.raises(ValueError, match=r"an event has the form|a reward has a value"):
        convert_event(body, EventContext("r", "root", 0, 0, 0))
