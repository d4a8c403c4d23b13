"""One rollout put together for its page: its attempts, and the calls of one with what each added. Pure."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

Row = dict[str, Any]


def attempts_of(ended: Sequence[Row], seen: Sequence[Row]) -> list[Row]:
    """All attempts, the first one first: those that ended, and those of which there are only spans so far.

    ``counts`` is true of the one that is the rollout: the lowest standing, then the first in the stream, as in the view
    rollouts and in `schemas.trajectory.attempt_selection`.
    """
    final = [row for row in ended if row["standing"] < 2]
    best = min(final, key=lambda row: (row["standing"], row["stream_sequence"]), default=None)
    known = {row["execution"] for row in ended}
    made = [{**row, "counts": row is best, "running": False} for row in ended]
    made += [{**row, "counts": False, "running": True} for row in seen if row["execution"] not in known]
    return sorted(made, key=lambda row: (row["started_ms"], row["attempt"]))


def chosen(attempts: Sequence[Row], execution: str) -> Row | None:
    """The attempt asked for; where none is, the one that counts, else the last."""
    for row in attempts:
        if row["execution"] == execution or (not execution and row["counts"]):
            return row
    return attempts[-1] if attempts and not execution else None


def requests_of(contents: Sequence[Row]) -> dict[int, str]:
    """The whole request of each call: pieces of earlier calls' own parts, counted in bytes, and then its own part."""
    own = {row["call"]: row["request"].encode() for row in contents}
    whole = {}
    for row in contents:
        pieces = [own.get(call, b"")[:length] for call, length in row["request_prefix"]]
        whole[row["call"]] = b"".join([*pieces, own[row["call"]]]).decode("utf-8", "replace")
    return whole


def calls_of(calls: Sequence[Row], contents: Sequence[Row], uses: Sequence[Row]) -> list[Row]:
    """Model calls with what each was asked anew, its answer token by token, and what training made of it.

    A chat is continued by the earlier call whose messages and answer are the longest beginning of its own.
    """
    answered = {row["call"]: row for row in contents}
    asked = {call: messages_of(request) for call, request in requests_of(contents).items()}
    use = next((row for row in uses if row["trained"]), None)
    histories: dict[int, list[Any]] = {}
    made = []
    for row in calls:
        call, answer = row["call"], answered.get(row["call"], {})
        messages = asked.get(call, [])
        after, known = _continued(messages, histories)
        said = _message(answer.get("response", ""))
        histories[call] = [*messages, *([said] if said is not None else [])]
        credit = use["credit"] if use else []
        advantage = (credit[call] if call < len(credit) else use["advantage"]) if use else None
        made.append(
            {
                **row,
                "continues": after,
                "known": known,
                "messages": messages[known:],
                "answer": said if said is not None else answer.get("response", ""),
                "pieces": answer.get("pieces", []),
                "tokens": answer.get("response_ids", []),
                "logprobs": answer.get("logprobs", []),
                "versions": answer.get("token_versions", []),
                "advantage": advantage,
                "trained_version": use["version"] if use else None,
            }
        )
    return made


def messages_of(request: str) -> list[Any]:
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


def _message(response: str) -> Any:
    try:
        return json.loads(response)
    except ValueError:
        return None


def _continued(messages: list[Any], histories: Mapping[int, list[Any]]) -> tuple[int | None, int]:
    best: tuple[int | None, int] = (None, 0)
    for call, history in histories.items():
        known = _alike(messages, history)
        if known and known >= best[1]:
            best = (call, known)
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
