"""Whatever an agent sends, eight times as much of it costs about eight times the CPU time, not 64 times."""

import contextlib
import json
from array import array
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from lightningbus.runners.protocol.dialects.registry import APIS
from lightningbus.runners.protocol.model_format import ModelFormat, adapt_messages, needed_fields
from lightningbus.runners.protocol.prompts import PromptChoice, substitute
from lightningbus.runners.protocol.request import ChatRequest
from lightningbus.runners.protocol.token_history import TokenHistory
from lightningbus.runners.recording import otlp, rewards
from lightningbus.runners.recording.agent_events import parse_event
from lightningbus.runners.rollout import parse_result
from lightningbus.schemas.semconv.call_attribution import CallIndex, RecordedCall
from lightningbus.schemas.spans import ModelCall, Span
from lightningbus.schemas.trajectory.prefix_encoding import PrefixEncoder, expand_calls
from tests.growth import MAX_GROWTH, measure_growth

TEXT = "You answer questions about numbers."
PROMPTS = (
    PromptChoice("x", 1, f"{TEXT} Round up.", TEXT),
    PromptChoice("y", 1, "a" * 200 + "c", "a" * 199 + "b"),
)
FUNCTION = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def tool_call(at: int) -> dict[str, Any]:
    return {"id": f"call_{at}", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}


def tool_use(at: int) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"toolu_{at}", "name": "f", "input": {"a": at}}


def function_call(at: int) -> dict[str, Any]:
    return {"type": "function_call", "call_id": f"call_{at}", "name": "f", "arguments": "{}"}


Body = Callable[[int], dict[str, Any]]
CHATS: dict[str, Body] = {
    "messages": lambda n: {"messages": [user("hi"), assistant("ho")] * n},
    "parts": lambda n: {"messages": [user([{"type": "text", "text": "hi"}] * n)]},
    "long text": lambda n: {"messages": [user("hi " * 200 * n)]},
    "system messages": lambda n: {"messages": [{"role": "system", "content": "hi " * 300}] * n},
    "late system messages": lambda n: {"messages": [user("hi"), *[{"role": "system", "content": "hi " * 300}] * n]},
    "tools": lambda n: {"messages": [user("hi")], "tools": [{"type": "function", "function": FUNCTION}] * n},
    "tool calls": lambda n: {"messages": [assistant(None, tool_calls=[tool_call(at) for at in range(n)])]},
    "nested": lambda n: {"messages": [user("hi")], "metadata": {str(at): [[], [{}]] for at in range(n)}},
}
MESSAGES: dict[str, Body] = {
    "messages": lambda n: {"messages": [user("hi"), assistant("ho")] * n},
    "system": lambda n: {"system": [{"type": "text", "text": "hi"}] * n, "messages": [user("hi")]},
    "user blocks": lambda n: {"messages": [user([{"type": "text", "text": "hi"}] * n)]},
    "results": lambda n: {
        "messages": [user([{"type": "tool_result", "tool_use_id": str(at), "content": "4"} for at in range(n)])]
    },
    "texts": lambda n: {"messages": [assistant([{"type": "text", "text": "hi there " * 20}] * n), user("hi")]},
    "thoughts": lambda n: {"messages": [assistant([{"type": "thinking", "thinking": "hm, so " * 20}] * n), user("hi")]},
    "tool uses": lambda n: {"messages": [assistant([tool_use(at) for at in range(n)]), user("hi")]},
    "tools": lambda n: {
        "messages": [user("hi")],
        "tools": [{"name": f"f{at}", "input_schema": FUNCTION["parameters"]} for at in range(n)],
    },
}
RESPONSES: dict[str, Body] = {
    "messages": lambda n: {"input": [user("hi"), assistant("ho")] * n},
    "parts": lambda n: {"input": [user([{"type": "input_text", "text": "hi"}] * n)]},
    "calls": lambda n: {"input": [function_call(at) for at in range(n)]},
    "outputs": lambda n: {
        "input": [{"type": "function_call_output", "call_id": str(at), "output": "4"} for at in range(n)]
    },
    "reasoning": lambda n: {
        "input": [{"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}] * n
    },
    "instructions": lambda n: {"instructions": "hi " * 200 * n, "input": "hi"},
    "tools": lambda n: {"input": "hi", "tools": [{"type": "function", **FUNCTION}] * n},
    "calls of many tools": lambda n: {
        "input": [function_call(at) for at in range(n)],
        "tools": [{"type": "function", **FUNCTION, "name": f"f{at}"} for at in range(n)],
    },
}
BODIES = [
    *(("chat/completions", name, body) for name, body in CHATS.items()),
    *(("messages", name, lambda n, body=body: {"max_tokens": 9, **body(n)}) for name, body in MESSAGES.items()),
    *(("responses", name, body) for name, body in RESPONSES.items()),
    ("completions", "prompts", lambda n: {"prompt": ["hi"] * n}),
]


@pytest.mark.parametrize(
    ("path", "body"), [pytest.param(path, body, id=f"{path}: {name}") for path, name, body in BODIES]
)
def test_reading_a_request(path: str, body: Body) -> None:
    def make(size: int) -> Callable[[], Any]:
        data = json.dumps({"model": "policy", **body(size)}).encode()

        def read() -> None:
            history = TokenHistory()
            call = substitute(APIS[path].parse(json.loads(data), history).call, PROMPTS).call
            call.to_record()
            call.to_engine_request({})
            if call.chat:
                for value in (False, True):
                    adapt_messages(call.body["messages"], ModelFormat(*[value] * 6))
                needed_fields(call.body["messages"])
                history.add(call, assistant("x"), [1], [])
                history.longest_prefix(call)

        return read

    assert measure_growth(make, 64) <= MAX_GROWTH


def test_going_on_with_a_response() -> None:
    def make(size: int) -> Callable[[], Any]:
        history = TokenHistory(responses={"resp_1": [user("hi"), assistant("ho")] * size})
        body = {"model": "policy", "previous_response_id": "resp_1", "input": [function_call(at) for at in range(size)]}
        return lambda: APIS["responses"].parse(body, history)

    assert measure_growth(make, 64) <= MAX_GROWTH


OPENING, CLOSING = "<!-- prompt:x -->", "<!-- /prompt -->"


@pytest.mark.parametrize(
    "piece",
    [
        OPENING,
        CLOSING,
        f"{OPENING}hi{CLOSING}",
        f"<!-- prompt:z -->{CLOSING}",
        TEXT,
        TEXT[:-1],
        "<!-- prompt:x ",
        "<!--",
        "a",
        " ",
    ],
)
@pytest.mark.parametrize("has_parts", [False, True])
def test_finding_prompts(piece: str, has_parts: bool) -> None:
    def make(size: int) -> Callable[[], Any]:
        content: Any = [{"type": "text", "text": piece}] * size if has_parts else piece * size
        body = {"model": "policy", "messages": [{"role": "system", "content": content}]}
        return partial(substitute, ChatRequest.parse(body, chat=True), PROMPTS)

    assert measure_growth(make, 256) <= MAX_GROWTH


def test_twenty_thousand_marks_are_read_at_once() -> None:
    body = {"model": "policy", "messages": [{"role": "system", "content": OPENING * 20_000}]}
    call = ChatRequest.parse(body, chat=True)
    assert substitute(call, PROMPTS).call is call


def conversations(size: int) -> list[list[Any]]:
    """Many short ones, all of which begin alike, with the same answers."""
    return [[{"role": "system", "content": TEXT}, user(f"{at}?"), assistant("ok"), user("more")] for at in range(size)]


def edited(size: int) -> list[list[Any]]:
    """One whose first message changes at each call."""
    return [[user(f"it is {at} o'clock"), assistant("ok"), user("more")] for at in range(size)]


@pytest.mark.parametrize("chats", [conversations, edited])
def test_remembering_answers(chats: Callable[[int], list[list[Any]]]) -> None:
    def make(size: int) -> Callable[[], Any]:
        calls = [ChatRequest.parse({"model": "policy", "messages": messages}, chat=True) for messages in chats(size)]

        def remember() -> None:
            history = TokenHistory()
            for call in calls:
                history.longest_prefix(call)
                history.add(call, assistant("ok"), [1, 2, 3], [1])

        return remember

    assert measure_growth(make, 64) <= MAX_GROWTH


def tokens(*ids: int) -> bytes:
    return array("I", ids).tobytes()


TEXTS: dict[str, Callable[[int], list[tuple[bytes, bytes]]]] = {
    "unlike": lambda n: [(tokens(at, *range(50)), tokens(1, 2)) for at in range(n)],
    "alike": lambda n: [(tokens(*range(50), at, 1, 2), tokens(3)) for at in range(n)],
    "the same": lambda n: [(tokens(*range(50)), tokens(3, 4, 5)) for _ in range(n)],
    "other answers": lambda n: [(tokens(*range(50)), tokens(3, 4, at)) for at in range(n)],
    "answers that begin another": lambda n: [(tokens(*range(50)), tokens(*[3] * (at % 7))) for at in range(n)],
    "two that alternate": lambda n: [(tokens(at % 2, *range(50), at), tokens(7)) for at in range(n)],
}


@pytest.mark.parametrize("texts", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("unit", [1, 4])
def test_storing_calls(texts: Callable[[int], list[tuple[bytes, bytes]]], unit: int) -> None:
    def make(size: int) -> Callable[[], Any]:
        pairs = texts(size)
        if unit == 1:
            pairs = [(str(list(prompt)).encode(), b"") for prompt, _ in pairs]

        def encode() -> None:
            encoder = PrefixEncoder(unit)
            for prompt, response in pairs:
                encoder.encode(prompt, response)

        return encode

    assert measure_growth(make, 64) <= MAX_GROWTH


def test_restoring_calls() -> None:
    def make(size: int) -> Callable[[], Any]:
        encoder, calls = PrefixEncoder(), []
        for at in range(size):
            text = encoder.encode(tokens(at % 3, *range(50), at), tokens(7))
            refs, digest = text.prefix_refs, text.sha256
            own_fields = {"prompt_ids": text.suffix, "response_ids": tokens(7), "logprobs": b"", "weight_versions": ()}
            known = {"prompt_prefix_refs": refs, "prompt_sha256": digest}
            calls.append(ModelCall(index=at, model="policy", node="n", **known, **own_fields))
        return partial(expand_calls, calls)

    assert measure_growth(make, 64) <= MAX_GROWTH


def test_a_conversation_costs_what_its_prompts_are_long() -> None:
    """Each prompt repeats all before it: four times as many tokens in twice as many calls."""

    def make(size: int) -> Callable[[], Any]:
        calls = round(size**0.5)
        prompts = [tokens(*range(8 * at)) for at in range(calls)]

        def encode() -> None:
            encoder = PrefixEncoder()
            for prompt in prompts:
                encoder.encode(prompt, tokens(9, 9))

        return encode

    assert measure_growth(make, 4096) <= MAX_GROWTH


def attribute(key: str, value: str) -> dict[str, Any]:
    return {"key": key, "value": {"stringValue": value}}


def span(at: int, attributes: list[Any]) -> dict[str, Any]:
    ids = {"traceId": "0" * 31 + "1", "spanId": f"{at + 1:016x}"}
    return {**ids, "name": "s", "startTimeUnixNano": "1", "endTimeUnixNano": "2", "attributes": attributes}


def exported(spans: list[Any]) -> dict[str, Any]:
    return {"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {}, "spans": spans}]}]}


def logged(size: int) -> dict[str, Any]:
    records = [{"timeUnixNano": "1", "body": {"stringValue": "hi"}} for _ in range(size)]
    return {"resourceLogs": [{"resource": {}, "scopeLogs": [{"scope": {}, "logRecords": records}]}]}


EXPORTS: dict[str, tuple[str, Body]] = {
    "spans": ("traces", lambda n: exported([span(at, []) for at in range(n)])),
    "attributes": ("traces", lambda n: exported([span(0, [attribute(f"k{at}", "v") for at in range(n)])])),
    "equal attributes": ("traces", lambda n: exported([span(0, [attribute("k", "v")] * n)])),
    "long text": ("traces", lambda n: exported([span(0, [attribute("k", "v " * 500 * n)])])),
    "unknown fields": ("traces", lambda n: exported([{**span(0, []), **{f"u{at}": at for at in range(n)}}])),
    "events": ("traces", lambda n: exported([{**span(0, []), "events": [{"name": "e"}] * n}])),
    "links": ("traces", lambda n: exported([{**span(0, []), "links": [{"spanId": "0" * 15 + "1"}] * n}])),
    "logs": ("logs", logged),
}


@pytest.mark.parametrize(("signal", "body"), EXPORTS.values(), ids=EXPORTS)
def test_reading_telemetry(signal: str, body: Body) -> None:
    def make(size: int) -> Callable[[], Any]:
        return partial(otlp.parse_request, signal, json.dumps(body(size)).encode(), otlp.JSON, "r", "1" * 16)

    assert measure_growth(make, 16) <= MAX_GROWTH


def test_reading_events_and_results() -> None:
    value: Body = lambda n: {"value": [{"a": ["x", 1.5, None]}] * n}  # noqa: E731
    assert measure_growth(lambda size: partial(parse_event, json.dumps(value(size)).encode()), 64) <= MAX_GROWTH
    assert measure_growth(lambda size: partial(parse_result, value(size)), 64) <= MAX_GROWTH


def reward_span(at: int, **attributes: Any) -> Span:
    ids = {"trace_id": "0" * 31 + "1", "span_id": f"{at + 1:016x}", "parent_span_id": "f" * 16}
    return Span(**ids, name="s", start_ns=at, end_ns=at, attributes=attributes)


def test_reading_rewards() -> None:
    def spans(size: int) -> Callable[[], Any]:
        return partial(
            rewards.resolve_rewards, {}, [reward_span(at, **{"lightningbus.reward": 1.0}) for at in range(size)]
        )

    def dimensions(size: int) -> Callable[[], Any]:
        named = reward_span(0, **{f"agentlightning.reward.{at}.value": 1.0 for at in range(size)})

        def read() -> None:
            with contextlib.suppress(rewards.InvalidRewardError):  # too many
                rewards.resolve_rewards({}, [named])

        return read

    assert measure_growth(spans, 64) <= MAX_GROWTH
    assert measure_growth(dimensions, 64) <= MAX_GROWTH


@pytest.mark.parametrize(
    "attributes",
    [
        {"agentlightning.link.0.key_match": "span_id", "agentlightning.link.0.value_match": "x"},
        {"agentlightning.link.0.key_match": "gen_ai.system", "agentlightning.link.0.value_match": "vllm"},
        {"gen_ai.tool.call.id": "call_1"},
        {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.call.result": "a result of words " * 10},
    ],
)
def test_finding_the_calls_of_spans(attributes: dict[str, Any]) -> None:
    def make(size: int) -> Callable[[], Any]:
        response = json.dumps(assistant(None, tool_calls=[tool_call(1)]))
        calls = [RecordedCall(f"{at:016x}", {"gen_ai.system": "vllm"}, at, response) for at in range(size)]

        def find() -> None:
            index = CallIndex(calls)
            for at in range(size):
                index.find_referenced(attributes)
                index.find_preceding(at)

        return find

    assert measure_growth(make, 64) <= MAX_GROWTH
