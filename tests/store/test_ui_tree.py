"""One tree of a rollout's spans, from spans as instrumentations write them, and through runner, store and page."""

import asyncio
from collections.abc import Sequence
from typing import Any

import aiohttp
import pytest

from lightningbus.bus.client import Bus
from lightningbus.schemas.semconv import attributes
from lightningbus.store.clickhouse.client import connect
from lightningbus.store.ui.client import Reader
from lightningbus.store.ui.rollouts.tree import QueryRow, build_tree
from lightningbus.store.ui.server import UiServer, serve
from lightningbus.tasks.task_publisher import TaskPublisher
from tests.runners.conftest import ScriptedEngine, running, task
from tests.store.conftest import Start

ROOT, CALLING = "root", '{"role": "assistant", "tool_calls": [{"id": "call_1"}]}'
IDS = ["931a686333e04a1e85252302c3e90f1f", "ecddfdd2412e4df79f6ad2ab003cae5a"]
LLM, CHAIN = {"openinference.span.kind": "LLM"}, {"openinference.span.kind": "CHAIN"}


def span(name: str, parent: str, start: float, end: float, **more: Any) -> QueryRow:
    """A span of the agent's whose id is its name."""
    fields = {"scope": "theirs", "kind": "internal", "attributes": {}, **more}
    return {"span_id": name, "name": name, "parent_span_id": parent, "start_ms": start, "end_ms": end, **fields}


def call(number: int, start: float, end: float, parent: str = ROOT) -> QueryRow:
    """A call as the gateway records it."""
    fields = {attributes.OPERATION: "chat", attributes.RESPONSE_ID: f"chatcmpl-{IDS[number]}"}
    return span(f"call{number}", parent, start, end, scope="lightningbus.runners", kind="client", attributes=fields)


def lines(spans: Sequence[QueryRow], root: str = ROOT) -> list[str]:
    """The tree as the page has it: a level is a blank."""
    calls = [
        {"call": int(item["name"][4:]), "span_id": item["span_id"]} for item in spans if item["name"][:4] == "call"
    ]
    tree = build_tree(spans, calls, [{"call": 0, "response": CALLING}], root)

    def below(parent: str, depth: int) -> list[str]:
        results = [item for item in tree if item["parent"] == parent]
        return [line for item in results for line in (" " * depth + item["name"], *below(item["span_id"], depth + 1))]

    assert len(below("", 0)) == len(spans), "every span stands in the tree once"
    return below("", 0)


TOP = span(ROOT, "publish", 0, 100, scope="lightningbus.runners")


@pytest.mark.parametrize(
    "text",
    [
        # opentelemetry-instrumentation-genai-openai 1.3b0; opentelemetry-instrumentation-openai 0.62.4
        {attributes.OPERATION: "chat", attributes.RESPONSE_ID: f"chatcmpl-{IDS[0]}"},
        # opentelemetry-instrumentation-openai-agents 0.62.4, by the Responses API
        {attributes.OPERATION: "chat", attributes.RESPONSE_ID: f"resp_{IDS[0]}"},
        # opentelemetry-instrumentation-anthropic 0.62.4
        {attributes.OPERATION: "chat", attributes.RESPONSE_ID: f"msg_{IDS[0]}"},
        # openinference-instrumentation-openai 0.1.66, -openai-agents 2.6.0, -anthropic 3.1.0
        {**LLM, "output.value": f'{{"id":"chatcmpl-{IDS[0]}","choices":[]}}'},
        {**LLM, "output.value": f'{{"id":"resp_{IDS[0]}","output":[{{"id":"msg_{IDS[0]}_0"}}]}}'},
        # openinference-instrumentation-langchain 0.1.80; the input has the answers before this one
        {**LLM, "input.value": IDS[1], "output.value": f'{{"llm_output": {{"id": "chatcmpl-{IDS[0]}"}}}}'},
        # langsmith 0.15.0
        {"langsmith.span.kind": "llm", "gen_ai.completion": f'{{"response_metadata":{{"id":"chatcmpl-{IDS[0]}"}}}}'},
    ],
)
def test_a_call_hangs_under_the_span_that_was_made_of_it(text: dict[str, str]) -> None:
    """Although another model call was open at the same time, and both began together."""
    other = {**LLM, "output.value": f'{{"id":"chatcmpl-{IDS[1]}"}}'}
    spans = [
        TOP,
        span("a", ROOT, 1, 50, attributes=other),
        span("b", ROOT, 1, 50, attributes=text),
        call(0, 2, 40),
        call(1, 2, 40),
    ]
    assert lines(spans) == ["root", " a", "  call1", " b", "  call0"]


def test_of_two_spans_of_one_answer_the_smaller_one_has_the_call() -> None:
    """openinference-instrumentation-anthropic 3.1.0 around anthropic 2.12.0's own span."""
    outer = {**LLM, "output.value": f'{{"id":"msg_{IDS[0]}"}}'}
    inner = {attributes.OPERATION: "chat", attributes.RESPONSE_ID: f"msg_{IDS[0]}"}
    spans = [TOP, span("outer", ROOT, 1, 50, attributes=outer), span("inner", "outer", 2, 49, attributes=inner)]
    assert lines([*spans, call(0, 3, 40)]) == ["root", " outer", "  inner", "   call0"]


def test_a_log_record_of_an_answer_holds_no_call() -> None:
    """opentelemetry-instrumentation-genai-openai 1.3b0 with EVENT_ONLY."""
    fields = {attributes.OPERATION: "chat", attributes.RESPONSE_ID: f"chatcmpl-{IDS[0]}"}
    log = span("log", "llm", 45, 45, attributes={**fields, attributes.LOG_BODY: "null"})
    spans = [TOP, span("llm", ROOT, 1, 50, attributes=fields), call(0, 3, 40), log]
    assert lines(spans) == ["root", " llm", "  call0", "  log"]


def test_what_the_agent_said_in_its_request_goes_first() -> None:
    """opentelemetry-instrumentation-langchain 0.62.4 sends a traceparent."""
    twin = {attributes.OPERATION: "chat", attributes.RESPONSE_ID: f"chatcmpl-{IDS[0]}"}
    spans = [TOP, span("http", ROOT, 1, 50), span("twin", ROOT, 1, 50, attributes=twin), call(0, 2, 40, parent="http")]
    assert lines(spans) == ["root", " http", "  call0", " twin"]
    gone = [TOP, span("twin", ROOT, 1, 50, attributes=twin), call(0, 2, 40, parent="not exported")]
    assert lines(gone) == ["root", " twin", "  call0"]


def test_without_an_id_a_call_hangs_under_what_was_open_when_it_began() -> None:
    """opentelemetry-instrumentation-genai-openai-agents 1.3b0 makes no span of a model call."""
    agent = {attributes.OPERATION: "invoke_agent"}
    tool = {attributes.OPERATION: "execute_tool"}
    spans = [
        TOP,
        span("workflow", ROOT, 1, 90),
        span("adder", "workflow", 2, 80, attributes=agent),
        call(0, 3, 20),
        span("add", "adder", 21, 30, attributes=tool),
        call(1, 31, 85),  # an answer that nobody waited for
    ]
    assert lines(spans) == ["root", " workflow", "  adder", "   call0", "   add", "   call1"]


def test_of_spans_side_by_side_none_is_guessed() -> None:
    spans = [TOP, span("both", ROOT, 1, 90), span("left", "both", 2, 80), span("right", "both", 2, 80), call(0, 3, 20)]
    assert lines(spans) == ["root", " both", "  left", "  right", "  call0"]


def test_a_span_made_of_another_answer_holds_no_call() -> None:
    other = {**LLM, "output.value": IDS[1]}
    assert lines([TOP, span("a", ROOT, 1, 50, attributes=other), call(0, 2, 40), call(1, 3, 39)]) == [
        "root", " a", "  call1", " call0",
    ]  # fmt: skip


def test_a_linked_reward_hangs_under_its_call_and_a_tool_says_whose_it_is() -> None:
    link = {"agentlightning.link.0.key_match": attributes.RESPONSE_ID, "agentlightning.reward.0.value": "1"}
    spans = [
        TOP,
        call(0, 2, 4),
        span("tool", ROOT, 9, 10, attributes={attributes.OPERATION: "execute_tool", attributes.TOOL_CALL: "call_1"}),
        call(1, 5, 6),
        span("reward", ROOT, 11, 11, attributes={**link, "agentlightning.link.0.value_match": f"resp_{IDS[1]}"}),
        span("loose", ROOT, 4, 4, attributes={"lightningbus.reward": "1"}),
    ]
    assert lines(spans) == ["root", " call0", " tool", " call1", "  reward", " loose"]
    calls = [{"call": number, "span_id": f"call{number}"} for number in range(2)]
    by_name = {
        item["name"]: item["call"] for item in build_tree(spans, calls, [{"call": 0, "response": CALLING}], ROOT)
    }
    assert by_name == {"root": None, "call0": 0, "tool": 0, "call1": 1, "reward": 1, "loose": 0}


def test_whatever_spans_say_of_their_parents_each_stands_in_the_tree_once() -> None:
    spans = [TOP, span("a", "b", 1, 2), span("b", "a", 1, 2), span("self", "self", 1, 2), span("lost", "gone", 1, 2)]
    assert sorted(line.strip() for line in lines(spans)) == ["a", "b", "lost", "root", "self"]
    link = {"agentlightning.link.0.key_match": "span_id", "agentlightning.link.0.value_match": "call0"}
    assert len(lines([TOP, span("around", ROOT, 1, 50, attributes=link), call(0, 2, 40)])) == 3
    at_work = [span("adder", ROOT, 1, 90), call(0, 3, 20)]  # the attempt's own span comes when it ends
    assert lines(at_work) == ["adder", " call0"]


async def test_an_instrumented_agent_is_one_tree_on_the_page(bus: Bus, nats_url: str, start_store: Start) -> None:
    store = await asyncio.to_thread(start_store, nats_url)
    async with ScriptedEngine().serving(bus) as engine:
        tool = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
        engine.script = [{"role": "assistant", "content": "", "tool_calls": [tool], "finish_reason": "tool_calls"}]
        async with running(bus, entrypoint="traced:graph"):
            await TaskPublisher(bus).publish_task(task())
            await asyncio.to_thread(store.until, "SELECT count() FROM rollouts", 1)
    reader = Reader(await asyncio.to_thread(connect, store.url))
    async with (
        serve(UiServer(reader, "127.0.0.1", lambda: "no bus here"), "127.0.0.1", 0) as url,
        aiohttp.ClientSession(url) as session,
        session.get("/api/rollout", params={"run_id": "run", "rollout_id": "t.0"}) as response,
    ):
        body = await response.json()
    assert (body["attempt"]["outcome"], body["attempt"]["reward"]) == ("ok", 1.0), "the last reward's first dimension"

    def below(parent: str, depth: int) -> list[str]:
        rows = [item for item in body["spans"] if item["parent"] == parent]
        lines = [
            (row["span_id"], f"{' ' * depth}{row['what']} {row['title'] or row['gist'] or row['name']} {row['call']}")
            for row in rows
        ]
        return [line for name, text in lines for line in (text, *below(name, depth + 1))]

    assert below("", 0) == [
        "publish send lb.task.eval.default None",
        " agent default None",
        "  chain adder None",
        "   chain model None",
        "    model ChatOpenAI None",
        "     model chat policy 0",
        "      reward primary 0.25 0",
        "   chain tools None",
        "    tool add 0",
        "   chain model None",
        "    model ChatOpenAI None",
        "     model chat policy 1",
        "  message I asked the model None",
        '  object {"n": 1} None',
        "  annotation tag.0=good, note.score=3 None",
        "  reward task 1.0, speed 0.5 1",
    ]
