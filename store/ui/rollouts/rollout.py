"""The page of a rollout: its attempts, and the calls of one attempt with what each added. Pure."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from lightningbus.schemas.trajectory.attempt_selection import Resolution, supersedes
from lightningbus.schemas.trajectory.compaction import Exchange, find_summaries

QueryRow = dict[str, Any]


def build_attempts(ended: Sequence[QueryRow], executions: Sequence[QueryRow]) -> list[QueryRow]:
    """List all attempts in the order they started: those that ended, and those that have only spans so far.

    ``counts`` is true of the attempt that is the rollout, by `lightningbus.schemas.trajectory.attempt_selection`.
    """
    best: QueryRow | None = None
    for row in sorted(ended, key=lambda row: row["stream_sequence"]):
        if supersedes(Resolution[row["resolution"].upper()], Resolution[best["resolution"].upper()] if best else None):
            best = row
    ended_executions = {row["execution_id"] for row in ended}
    rows = [{**row, "counts": row is best, "running": False} for row in ended]
    rows += [
        {**row, "counts": False, "running": True} for row in executions if row["execution_id"] not in ended_executions
    ]
    return sorted(rows, key=lambda row: (row["started_ms"], row["attempt"]))


def select_attempt(attempts: Sequence[QueryRow], execution: str) -> QueryRow | None:
    """Select the attempt of an execution; without one, the attempt that counts, else the last."""
    for row in attempts:
        if row["execution_id"] == execution or (not execution and row["counts"]):
            return row
    return attempts[-1] if attempts and not execution else None


def expand_requests(contents: Sequence[QueryRow]) -> dict[int, str]:
    """Restore the full request of each call: prefixes of earlier calls' suffixes, in bytes, then its own suffix.

    A missing call is tolerated, unlike in `lightningbus.schemas.trajectory.prefix_encoding.expand_calls`: the page
    shows what there is.
    """
    suffixes = {row["call"]: row["request"].encode() for row in contents}
    requests = {}
    for row in contents:
        prefixes = [suffixes.get(call, b"")[:length] for call, length in row["request_prefix_refs"]]
        requests[row["call"]] = b"".join([*prefixes, suffixes[row["call"]]]).decode("utf-8", "replace")
    return requests


def build_calls(calls: Sequence[QueryRow], contents: Sequence[QueryRow], uses: Sequence[QueryRow]) -> list[QueryRow]:
    """Build model calls with new messages, response token by token, and the advantage in their model's training.

    A call continues the earlier call whose messages and response are its longest prefix. ``summary_call`` is the call
    whose answer is the summary that its conversation begins with.
    """
    contents_by_call = {row["call"]: row for row in contents}
    messages_by_call = {call: parse_messages(request) for call, request in expand_requests(contents).items()}
    use_by_model = {row["model"]: row for row in uses if row["trained"]}
    histories: dict[int, list[Any]] = {}
    exchanges: list[Exchange] = []
    beginnings: list[int] = []
    continued: set[int | None] = set()
    rows: list[QueryRow] = []
    for row in calls:
        call, content = row["call"], contents_by_call.get(row["call"], {})
        messages = messages_by_call.get(call, [])
        continued_call, num_known = _find_continued(messages, histories)
        reply = _parse_message(content.get("response", ""))
        if continued_call in continued or continued_call is None or num_known < len(histories[continued_call]):
            beginnings.append(len(rows))
        continued.add(continued_call)
        exchanges.append(Exchange(messages, reply))
        histories[call] = [*messages, *([reply] if reply is not None else [])]
        use = use_by_model.get(row["model"])
        call_advantages = use["call_advantages"] if use else []
        advantage = (call_advantages[call] if call < len(call_advantages) else use["advantage"]) if use else None
        rows.append(
            {
                **row,
                "continues": continued_call,
                "known": num_known,
                "messages": messages[num_known:],
                "answer": reply if reply is not None else content.get("response", ""),
                "token_texts": content.get("token_texts", []),
                "tokens": content.get("response_ids", []),
                "logprobs": content.get("logprobs", []),
                "versions": content.get("token_versions", []),
                "advantage": advantage,
                "trained_version": use["version"] if use else None,
                "summary_call": None,
            }
        )
    for index, summary in find_summaries(exchanges, beginnings).items():
        rows[index]["summary_call"] = rows[summary]["call"]
    return rows


def parse_messages(request: str) -> list[Any]:
    """Parse the messages of a request; a request that is not a chat is one message with a role of its own."""
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
        num_known = _common_prefix_len(messages, history)
        if num_known and num_known >= best[1]:
            best = (call, num_known)
    return best


def _common_prefix_len(messages: list[Any], history: list[Any]) -> int:
    """Count the equal messages at the beginning."""
    for index, (message, other) in enumerate(zip(messages, history, strict=False)):
        if message != other and _comparable_fields(message) != _comparable_fields(other):
            return index
    return min(len(messages), len(history))


def _comparable_fields(message: Any) -> Any:
    """Return the fields of a message that clients send back; they leave out others, such as reasoning.

    `lightningbus.schemas.trajectory.chat_messages.same_message` would find those two messages different.
    """
    if not isinstance(message, Mapping):
        return message
    return {name: value for name, value in message.items() if name in ("role", "content", "tool_calls") and value}
