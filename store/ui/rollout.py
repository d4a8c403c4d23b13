"""One rollout put together for its page: its attempts, and the calls of one with what each added. Pure."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

QueryRow = dict[str, Any]


def build_attempts(ended: Sequence[QueryRow], executions: Sequence[QueryRow]) -> list[QueryRow]:
    """All attempts, the first one first: those that ended, and those of which there are only spans so far.

    ``counts`` is true of the one that is the rollout: the lowest standing, then the first in the stream, as in the view
    rollouts and in `schemas.trajectory.attempt_selection`.
    """
    final = [row for row in ended if row["standing"] < 2]
    best = min(final, key=lambda row: (row["standing"], row["stream_sequence"]), default=None)
    ended_executions = {row["execution"] for row in ended}
    rows = [{**row, "counts": row is best, "running": False} for row in ended]
    rows += [
        {**row, "counts": False, "running": True} for row in executions if row["execution"] not in ended_executions
    ]
    return sorted(rows, key=lambda row: (row["started_ms"], row["attempt"]))


def select_attempt(attempts: Sequence[QueryRow], execution: str) -> QueryRow | None:
    """The attempt asked for; where none is, the one that counts, else the last."""
    for row in attempts:
        if row["execution"] == execution or (not execution and row["counts"]):
            return row
    return attempts[-1] if attempts and not execution else None


def expand_requests(contents: Sequence[QueryRow]) -> dict[int, str]:
    """The whole request of each call: pieces of earlier calls' own parts, counted in bytes, and then its own part."""
    suffixes = {row["call"]: row["request"].encode() for row in contents}
    whole = {}
    for row in contents:
        pieces = [suffixes.get(call, b"")[:length] for call, length in row["request_prefix"]]
        whole[row["call"]] = b"".join([*pieces, suffixes[row["call"]]]).decode("utf-8", "replace")
    return whole


def build_calls(calls: Sequence[QueryRow], contents: Sequence[QueryRow], uses: Sequence[QueryRow]) -> list[QueryRow]:
    """Model calls with what each was asked anew, its answer token by token, and what training made of it.

    A chat is continued by the earlier call whose messages and answer are the longest beginning of its own.
    """
    contents_by_call = {row["call"]: row for row in contents}
    messages_by_call = {call: parse_messages(request) for call, request in expand_requests(contents).items()}
    use = next((row for row in uses if row["trained"]), None)
    histories: dict[int, list[Any]] = {}
    rows = []
    for row in calls:
        call, content = row["call"], contents_by_call.get(row["call"], {})
        messages = messages_by_call.get(call, [])
        continued_call, num_known = _find_continued(messages, histories)
        reply = _parse_message(content.get("response", ""))
        histories[call] = [*messages, *([reply] if reply is not None else [])]
        call_advantages = use["credit"] if use else []
        advantage = (call_advantages[call] if call < len(call_advantages) else use["advantage"]) if use else None
        rows.append(
            {
                **row,
                "continues": continued_call,
                "known": num_known,
                "messages": messages[num_known:],
                "answer": reply if reply is not None else content.get("response", ""),
                "pieces": content.get("pieces", []),
                "tokens": content.get("response_ids", []),
                "logprobs": content.get("logprobs", []),
                "versions": content.get("token_versions", []),
                "advantage": advantage,
                "trained_version": use["version"] if use else None,
            }
        )
    return rows


def parse_messages(request: str) -> list[Any]:
    """What a request asks, message by message; what is no chat is one message of its own role."""
    try:
        body = json.loads(request)
    except ValueError:
        return [{"role": "request", "content": request}] if request else []
    if not isinstance(body, Mapping):
        return [{"role": "request", "content": body}]
    if isinstance(body.get("messages"), list):
        return list(body["messages"])
    return [{"role": "prompt", "content": body.get("prompt", body.get("input", body))}]


def _parse_message(response: str) -> Any:
    try:
        return json.loads(response)
    except ValueError:
        return None


def _find_continued(messages: list[Any], histories: Mapping[int, list[Any]]) -> tuple[int | None, int]:
    best: tuple[int | None, int] = (None, 0)
    for call, history in histories.items():
        num_known = _alike(messages, history)
        if num_known and num_known >= best[1]:
            best = (call, num_known)
    return best


def _alike(messages: list[Any], history: list[Any]) -> int:
    """How many messages at the beginning say the same."""
    for place, (one, other) in enumerate(zip(messages, history, strict=False)):
        if one != other and _gist(one) != _gist(other):
            return place
    return min(len(messages), len(history))


def _gist(message: Any) -> Any:
    """What a message says, without the fields that clients leave out when they send an answer back."""
    if not isinstance(message, Mapping):
        return message
    return {name: value for name, value in message.items() if name in ("role", "content", "tool_calls") and value}
