"""What an agent reports by plain HTTP becomes spans of its rollout, of the calls before them, and may be a reward."""

import re
import sys
from typing import Any

import aiohttp
import pytest

from lightningbus.bus.client import Bus
from lightningbus.learner.rollouts.intermediate_rewards import intermediate_rewards
from lightningbus.learner.settings.algorithm import AirRule
from lightningbus.runners.gateway.server import Gateway
from lightningbus.runners.gateway.slot import Slot
from lightningbus.runners.recording.agent_events import EventContext, convert_event
from lightningbus.runners.recording.attempt import AttemptRecorder
from lightningbus.schemas.semconv.span_kinds import kind_of
from lightningbus.schemas.spans import Span
from lightningbus.tasks.task_publisher import TaskPublisher
from tests.runners.conftest import ScriptedEngine, ended, running, task
from tests.runners.test_telemetry import Bed, bed

SEARCH = {"name": "search", "kind": "tool", "input": {"q": "x"}, "output": "nothing", "status": "error"}


def to_span(body: Any, now_ns: int = 10**10) -> Span:
    return convert_event(body, EventContext("r", "root", 0, 1, now_ns))


async def test_events_are_spans_that_air_rules_and_intermediate_rewards_count_for_the_call_before(
    bus: Bus, engine: ScriptedEngine
) -> None:
    events = [[SEARCH, {"reward": 0.25}], [{**SEARCH, "status": "ok"}, {"rewards": {"speed": 0.5, "style": 9}}]]
    async with running(bus, entrypoint="plain:reports_events"):
        await TaskPublisher(bus).publish_task(task(input={"events": events, "reward": 1.0}))
        (batch,) = await ended(bus)
    assert batch.end is not None and (batch.end.outcome, batch.end.reward) == ("ok", 1.0), batch.end
    assert batch.end.reward_span == "" and batch.end.rewards == {}
    tools = [span for span in batch.spans if kind_of(span.name, span.attributes) == "tool"]
    assert [(span.name, span.status, span.parent_span_id) for span in tools] == [
        ("execute_tool search", "error", batch.spans[-1].span_id),
        ("execute_tool search", "ok", batch.spans[-1].span_id),
    ]
    assert tools[0].attributes == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "search",
        "gen_ai.tool.call.arguments": {"q": "x"},
        "gen_ai.tool.call.result": "nothing",
        "error.type": "_OTHER",
    }
    rules = [AirRule(kind="tool", status="error", reward=-1.0)]
    assert intermediate_rewards(batch.spans, "", rules) == (-0.75, 0.5)


async def test_the_last_reward_event_is_the_rollouts_where_the_agent_returns_none(
    bus: Bus, engine: ScriptedEngine
) -> None:
    events = [[{"reward": 0.25}], [{"name": "judge", "rewards": {"writer": 0.5, "checker": 1}}]]
    async with running(bus, entrypoint="plain:reports_events"):
        await TaskPublisher(bus).publish_task(task(input={"events": events}))
        (batch,) = await ended(bus)
    assert batch.end is not None
    assert (batch.end.reward, batch.end.rewards) == (0.5, {"writer": 0.5, "checker": 1.0})
    assert intermediate_rewards(batch.spans, batch.end.reward_span, []) == (0.25, 0.0)


@pytest.mark.parametrize(
    ("body", "name", "kind"),
    [
        ({"name": "x"}, "x", "other"),
        ({"name": "x", "kind": "tool"}, "execute_tool x", "tool"),
        ({"name": "x", "kind": "retriever"}, "retrieval x", "retriever"),
        ({"name": "x", "kind": "agent"}, "invoke_agent x", "agent"),
        ({"name": "x", "kind": "chain"}, "invoke_workflow x", "chain"),
        ({"reward": 1}, "reward", "reward"),
        ({"rewards": {"a": 1}}, "reward", "reward"),
        ({"name": "x", "kind": "tool", "reward": 1}, "execute_tool x", "tool"),
    ],
)
def test_the_kind_of_an_event(body: dict[str, Any], name: str, kind: str) -> None:
    span = to_span(body)
    assert (span.name, kind_of(span.name, span.attributes)) == (name, kind)


def test_an_event_may_say_how_long_it_took_but_not_that_it_began_before_the_attempt() -> None:
    assert (to_span({"name": "x", "seconds": 2.5}).start_ns, to_span({"name": "x"}).start_ns) == (7_500_000_000, 10**10)
    assert to_span({"name": "x", "seconds": 100}).start_ns == 1
    assert to_span({"name": "x", "tool_call_id": "call_1"}).attributes == {"gen_ai.tool.call.id": "call_1"}


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ([], "an event is an object, such as"),
        ({}, "an event is an object, such as"),
        ({"kind": "tool"}, "an event has a name, a reward or rewards"),
        ({"kind": "tool", "reward": 1}, "an event of kind 'tool' has a name"),
        ({"nmae": "search"}, "the event is malformed: Object contains unknown field `nmae`"),
        ({"name": "x", "kind": "toll"}, "the event is malformed: Invalid enum value 'toll' - at `$.kind`"),
        ({"name": "x", "status": "failed"}, "Invalid enum value 'failed' - at `$.status`"),
        ({"name": "x" * 101}, "Expected `str` of length <= 100 - at `$.name`"),
        ({"name": "x", "seconds": -1}, "Expected `float` >= 0.0 - at `$.seconds`"),
        ({"reward": "much"}, "a reward is a number, not 'much'"),
        ({"reward": float("nan")}, "a reward is a finite number, not nan"),
        ({"reward": 1e39}, "a reward lies between -1e+12 and 1e+12, and this one is 1e+39"),
        ({"rewards": {"a": -1e39}}, "the reward 'a' lies between -1e+12 and 1e+12, and this one is -1e+39"),
        ({"event_type": "reward", "data": {"value": 1e39}}, "a reward lies between"),
        ({"rewards": {"a": None}}, "the reward 'a' is a number, not 'None'"),
        ({"rewards": {str(number): 1 for number in range(65)}}, "at most 64 named rewards"),
    ],
)
async def test_what_is_no_event_is_refused_in_a_sentence(bus: Bus, body: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        to_span(body)


async def posted(built: Bed, path: str = "/v1/events", key: str = "", **fields: Any) -> tuple[int, str]:
    headers = {"Authorization": f"Bearer {key or built.slot.key}"}
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{built.slot.base_url}{path}", headers=headers, **fields) as answer,
    ):
        error = (await answer.json()).get("error") or {}
        return answer.status, error.get("message", "")


async def test_who_may_report_events_and_how_large_they_are(bus: Bus) -> None:
    async with bed(bus) as built:
        assert await posted(built, json={"reward": 1}) == (200, "")
        assert await posted(built, path="/events", json={"event_type": "reward", "data": {"value": 1}}) == (200, "")
        assert await posted(built, key="another", json={"reward": 1}) == (401, "this key is not valid here")
        status, sentence = await posted(built, json={"reward": "much"})
        assert (status, sentence) == (400, "a reward is a number, not 'much'")
        assert (await posted(built, data=b"{"))[0] == 400
        cut = b'{"name": "search", "kind": "tool", "output": "half a smile: \\ud83d"}'
        assert await posted(built, data=cut) == (200, "")
        large = {"name": "x", "kind": "tool", "output": "x" * 3_200_000}
        assert await posted(built, json=large) == (413, "the attempt has no room for this event")
        status, sentence = await posted(built, data=b"x" * 4_200_000)
        assert (status, sentence) == (413, f"a request to /slot/0/v1/events may have {4 * 1024 * 1024} bytes")
        built.slot.end()
        status, sentence = await posted(built, json={"reward": 1})
        assert (status, sentence) == (409, "no rollout is running: model calls and events belong to one")
    assert len(built.attempt.reward_spans) == 2


async def test_another_slots_key_is_refused(bus: Bus) -> None:
    async def send(attempt: AttemptRecorder, seconds: float) -> None:
        """Nothing is sent."""

    attempts = [AttemptRecorder(task(id=id), 1, "runner") for id in "ab"]
    async with bus.fleet("inference") as fleet, Gateway(fleet, send, 2) as gateway:
        for slot, attempt in zip(gateway.slots, attempts, strict=True):
            slot.environment()
            slot.begin(attempt, task(), sys.float_info.max)
        first, second = gateway.slots
        mixed = Slot(0, base_url=first.base_url, key=second.key)
        assert await posted(Bed(mixed, attempts[0]), json={"reward": 1}) == (401, "this key is not valid here")
    assert not attempts[0].reward_spans and not attempts[1].reward_spans
