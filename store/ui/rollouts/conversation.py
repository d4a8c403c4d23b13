"""The calls of a rollout as one conversation, each message and each tool call once. Pure."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

QueryRow = dict[str, Any]

THOUGHT = re.compile(r"\A\s*<think>(.*?)(?:</think>|\Z)\s*", re.DOTALL)
"""A thought at the beginning of an answer, where no parser took it out."""


def build_conversation(calls: Sequence[QueryRow]) -> list[QueryRow]:
    """Put the new messages and the answer of each call one after another.

    ``calls`` are those of `lightningbus.store.ui.rollouts.rollout.build_calls`. An item is a message (``role``,
    ``text``, ``thought``), a tool call (``tool``, ``arguments``, ``result``, which is None while there is none), or a
    break before a call that does not continue the one before it (``summary_call``). Each has its ``call``; an answer
    has ``is_answer``.
    """
    items: list[QueryRow] = []
    waiting: dict[str, QueryRow] = {}
    last: int | None = None
    for call in calls:
        if last is not None and call["continues"] != last:
            items.append(
                {
                    "kind": "break",
                    "call": call["call"],
                    "continues": call["continues"],
                    "summary_call": call["summary_call"],
                }
            )
        last = call["call"]
        for message in call["messages"]:
            items += _read_message(message, call["call"], waiting)
        if call["answer"] not in ("", None):
            answer = call["answer"] if isinstance(call["answer"], Mapping) else {"content": call["answer"]}
            items += _read_message({"role": "assistant", **answer}, call["call"], waiting, is_answer=True)
    return items


def _read_message(message: Any, call: int, waiting: dict[str, QueryRow], is_answer: bool = False) -> Iterable[QueryRow]:
    if not isinstance(message, Mapping):
        message = {"role": "message", "content": message}
    role, text = str(message.get("role") or "message"), content_text(message.get("content"))
    if role == "tool" and (tool := waiting.pop(str(message.get("tool_call_id", "")), None)):
        tool["result"] = text
        return
    thought = content_text(message.get("reasoning_content") or message.get("reasoning"))
    if not thought and role == "assistant" and (match := THOUGHT.match(text)):
        thought, text = match[1].strip(), text[match.end() :]
    tools = [item for item in message.get("tool_calls") or () if isinstance(item, Mapping)]
    if text or thought or not tools:
        yield {"kind": "message", "call": call, "role": role, "text": text, "thought": thought, "is_answer": is_answer}
    for item in tools:
        yield _open_tool(item, call, waiting)


def _open_tool(item: Mapping[str, Any], call: int, waiting: dict[str, QueryRow]) -> QueryRow:
    function = item.get("function")
    function = function if isinstance(function, Mapping) else item
    tool: QueryRow = {
        "kind": "tool",
        "call": call,
        "tool": str(function.get("name") or "tool"),
        "arguments": content_text(function.get("arguments")),
        "result": None,
    }
    if identity := str(item.get("id") or ""):
        waiting[identity] = tool
    return tool


def content_text(content: Any) -> str:
    """Return the content of a message as text: of parts their texts, of what is no text its JSON."""
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list):
        return "\n".join(
            part["text"] if isinstance(part, Mapping) and isinstance(part.get("text"), str) else content_text(part)
            for part in content
        )
    return json.dumps(content, ensure_ascii=False, indent=2)
