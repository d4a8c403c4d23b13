"""One rollout to read: rewards by name, and what the agent reported by POST /events."""

import asyncio
import json
from typing import Any

import pytest
from msgspec.structs import replace

from lightningbus.analysis.transcript import Transcript
from lightningbus.optimize.rollout_reader import read_results
from lightningbus.run.run_data.agent_spans import AGENT_SPANS
from lightningbus.runners.recording.agent_events import SCOPE, EventContext, convert_event
from lightningbus.schemas.semconv.attributes import AGENT_OUTPUT
from lightningbus.schemas.tasks import Task, TaskBatchRecord, TaskRecord
from tests.factories import START_NS, batches
from tests.seed_store import insert
from tests.store.conftest import StoreProcess, prepared

EVENTS: list[dict[str, Any]] = [
    {"name": "search", "kind": "tool", "input": "ants", "output": "none", "status": "error", "reward": 0.25},
    {"name": "noted", "rewards": {"style": 0.5}},
]
ROLLOUT = "a.0"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Any:
    spans = [
        convert_event(event, EventContext(ROLLOUT, "0", number, START_NS, START_NS + number + 1))
        for number, event in enumerate(EVENTS)
    ]
    (batch,) = batches("a", 0, reward=0.75, parts=1)
    assert batch.end is not None
    called = [replace(span, scope="lightningbus.runners") for span in batch.spans]
    called[0] = replace(called[0], attributes={**called[0].attributes, AGENT_OUTPUT: "thinking\n"})
    end = replace(batch.end, rewards={"reward": 0.75, "writer": 1.0}, num_spans=3)
    with prepared(tmp_path_factory.mktemp("store")) as built:
        question = {"question": "2 + 2", "answer": 4}
        task = Task(id="a", run_id="run", agent="adder", input=question, labels={"level": "easy"})
        record = TaskRecord(task=task, rollout_id=ROLLOUT, span=batch.spans[0])
        insert(built.sql, [TaskBatchRecord(tasks=(record,)), replace(batch, spans=(*called, *spans), end=end)])
        yield built


@pytest.mark.integration
def test_rewards_by_name_and_events_of_the_agent_are_shown(
    store: StoreProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    transcript = Transcript.load(store.sql, ROLLOUT, "run")
    text = repr(transcript)
    assert "reward 0.75 (reward 0.75, writer 1)" in text
    assert "[tool execute_tool search 0.000 s] ants → none, reward 0.25" in text
    assert "noted 0.000 s] style 0.5" in text
    assert text.rstrip().endswith("printed: thinking")
    assert 'task: {"question":"2 + 2","answer":4} · level: easy' in text
    transcript.show_json()
    printed = json.loads(capsys.readouterr().out)
    assert printed["rewards"] == {"reward": 0.75, "writer": 1.0} and len(printed["spans"]) == len(EVENTS)


@pytest.mark.integration
async def test_an_optimisation_reads_events_of_the_agent(store: StoreProcess) -> None:
    results = await asyncio.to_thread(read_results, store.sql, "run", {ROLLOUT: 1}, True)
    assert [span["name"] for span in results[ROLLOUT].spans] == ["execute_tool search", "noted"]


def test_the_scope_of_events_is_that_of_the_runner() -> None:
    assert f"scope = '{SCOPE}'" in AGENT_SPANS
