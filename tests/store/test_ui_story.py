"""The story of a rollout: its task in parts, its conversation without repeats, and what its spans say beside it."""

import json
from typing import Any

from lightningbus.schemas.semconv import attributes
from lightningbus.store.ui.rollouts.conversation import build_conversation
from lightningbus.store.ui.rollouts.findings import add_usage, find_artifacts, find_judgements, find_output
from lightningbus.store.ui.rollouts.rollout import build_calls
from lightningbus.store.ui.rollouts.task_card import describe_task

SYSTEM, QUESTION = {"role": "system", "content": "Add."}, {"role": "user", "content": "2+2?"}
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2, "b": 2}'}}
ASKS = {"role": "assistant", "content": None, "reasoning_content": "I can add.", "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "4"}
ANSWER = {"role": "assistant", "content": "<think>so four</think>\n\nFour."}


def calls_of(*exchanges: tuple[list[Any], Any]) -> list[dict[str, Any]]:
    """Calls with these messages and answers."""
    calls: list[dict[str, Any]] = [
        {"call": number, "model": "policy", "span_id": f"s{number}", "prompt_tokens": 0, "response_tokens": 0}
        for number in range(len(exchanges))
    ]
    contents = [
        {
            "call": number, "request_prefix_refs": [], "request": json.dumps({"messages": messages}),
            "response": json.dumps(answer),
        }
        for number, (messages, answer) in enumerate(exchanges)
    ]  # fmt: skip
    return build_calls(calls, contents, [])


def test_a_tool_call_stands_once_with_its_arguments_and_its_result() -> None:
    items = build_conversation(calls_of(([SYSTEM, QUESTION], ASKS), ([SYSTEM, QUESTION, ASKS, RESULT], ANSWER)))
    assert [(item["kind"], item.get("role"), item.get("text")) for item in items] == [
        ("message", "system", "Add."),
        ("message", "user", "2+2?"),
        ("message", "assistant", ""),
        ("tool", None, None),
        ("message", "assistant", "Four."),
    ]
    assert [item.get("thought") for item in items] == ["", "", "I can add.", None, "so four"]
    assert (items[3]["tool"], json.loads(items[3]["arguments"]), items[3]["result"]) == ("add", {"a": 2, "b": 2}, "4")
    assert [item.get("is_answer") for item in items if item["kind"] == "message"] == [False, False, True, True]


def test_another_conversation_and_a_tool_without_a_result_are_said() -> None:
    other = [{"role": "user", "content": [{"type": "text", "text": "Check"}, {"type": "image_url", "image_url": {}}]}]
    items = build_conversation(calls_of(([QUESTION], ASKS), (other, {"role": "assistant", "content": "fine"})))
    assert items[2]["tool"] == "add" and items[2]["result"] is None
    assert items[3] == {"kind": "break", "call": 1, "continues": None, "summary_call": None}
    assert items[4]["text"].startswith("Check\n{") and items[5]["text"] == "fine"


def test_odd_messages_are_text_and_a_tool_message_of_nobody_is_shown() -> None:
    items = build_conversation(calls_of((["hello", {**RESULT, "tool_call_id": "c9"}], "no chat")))
    assert [(item["role"], item["text"]) for item in items] == [
        ("message", "hello"),
        ("tool", "4"),
        ("assistant", "no chat"),
    ]


def test_a_task_is_its_question_its_expected_answer_and_other_fields() -> None:
    described = describe_task('{"question": "2+2?", "answer": 4, "level": {"n": 1}}')
    assert (described["question"], described["expected"]) == ("2+2?", "4")
    assert json.loads(described["fields"]["level"]) == {"n": 1}
    chat = describe_task(json.dumps({"messages": [SYSTEM, QUESTION], "target": "4"}))
    assert (chat["question"], chat["expected"], chat["fields"]) == ("2+2?", "4", {})
    assert describe_task('"2+2?"') == {"question": "2+2?", "expected": "", "fields": {}}
    assert describe_task("not json")["question"] == "not json"
    assert describe_task('{"word": "x"}') == {"question": "", "expected": "", "fields": {"word": "x"}}


def span(scope: str = "lightningbus.runners", **values: str) -> dict[str, Any]:
    """A stored span."""
    return {"span_id": "s0", "scope": scope, "attributes": {getattr(attributes, name): values[name] for name in values}}


def test_spans_hold_judgements_files_prints_and_the_tokens_of_outside_endpoints() -> None:
    judge = span(
        attributes.GRADER_SCOPE, GRADER="helpful", REQUEST_MODEL="large", OUTPUT="good: 4", INPUT_TOKENS="40",
        OUTPUT_TOKENS="5", GRADER_COST="0.25", GRADER_CACHED="false",
    )  # fmt: skip
    (judgement,) = find_judgements([span(GRADER="forged"), judge])
    assert (judgement["grader"], judgement["text"], judgement["cost"]) == ("helpful", "good: 4", 0.25)
    assert (judgement["prompt_tokens"], judgement["response_tokens"], judgement["is_cached"]) == (40, 5, False)
    kept = span(ARTIFACT_NAME="a.txt", ARTIFACT_BYTES="3", ARTIFACT_ENCODING="utf-8", ARTIFACT_CONTENT="abc")
    assert [(file["name"], file["bytes"], file["content"]) for file in find_artifacts([kept])] == [("a.txt", 3, "abc")]
    assert find_output([kept, span(AGENT_OUTPUT="hello\n")]) == "hello\n" and find_output([kept]) == ""
    calls = calls_of(([QUESTION], ANSWER))
    add_usage(calls, [span(INPUT_TOKENS="12", OUTPUT_TOKENS="3")])
    assert (calls[0]["prompt_tokens"], calls[0]["response_tokens"]) == (12, 3)
