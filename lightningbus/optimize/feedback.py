"""Examples that the reflecting model is shown: rollouts, failures first, within a number of characters. Pure."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lightningbus.schemas.semconv import attributes
from lightningbus.schemas.semconv.rewards import reward_dimensions
from lightningbus.schemas.semconv.span_kinds import entity_name, kind_of, summarize
from lightningbus.schemas.text import shorten

MAX_INPUT_CHARS, MAX_WORDS_CHARS, MAX_TURN_CHARS = 2000, 1000, 2000
MIN_RECORD_CHARS = 300
"""Fewest characters of a record; a shorter one would say nothing, and is left out."""
WORDS = ("explanation", "feedback", "comment", "reason", "rationale", "critique", "message")
"""Endings of attribute names under which judges explain their score."""

Record = dict[str, str]
"""One example, as GEPA shows it."""


@dataclass(frozen=True, slots=True)
class CallText:
    """A model call, as text."""

    role: str
    request: str
    """JSON of the agent's request, with the prompt that it had."""
    response: str
    """JSON of the answer."""
    prompt_versions: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RolloutResult:
    """Result of one rollout."""

    rollout_id: str
    input: Any
    outcome: str
    reward: float | None
    """Reward that the agent gave; None if it gave none."""
    error: str = ""
    result: str = ""
    rewards: Mapping[str, float] = field(default_factory=dict)
    calls: tuple[CallText, ...] = ()
    spans: tuple[Mapping[str, Any], ...] = ()
    """Rows of the view ``spans``: name, status, status_message, attributes, events."""

    @property
    def score(self) -> float:
        """The reward; 0 for a rollout that failed."""
        return self.reward if self.outcome == "ok" and self.reward is not None else 0.0


def build_records(results: Sequence[RolloutResult], prompt: str, max_chars: int) -> list[Record]:
    """Return an example for each rollout, at most ``max_chars`` characters in all.

    The worst rollouts come first; among equals, those with more reasons to show. What does not fit is dropped from the
    end.
    """
    candidates = [(result, _reasons(result)) for result in results]
    candidates.sort(key=lambda each: (each[0].score, -len(each[1])))
    records: list[Record] = []
    left = max_chars
    share = max(MIN_RECORD_CHARS, max_chars // max(1, min(len(candidates), 8)))
    for result, reasons in candidates:
        room = min(left, share)
        if room < MIN_RECORD_CHARS:
            break
        record = _record(result, reasons, prompt, room)
        records.append(record)
        left -= sum(len(key) + len(value) for key, value in record.items())
    return records


def _record(result: RolloutResult, reasons: Sequence[str], prompt: str, room: int) -> Record:
    reward = "none" if result.reward is None else f"{result.reward:g}"
    feedback = "\n".join((f"Reward: {reward}. Outcome: {result.outcome}.", *reasons))
    conversation = "\n".join(_conversation(result, prompt)) or "The prompt was in no model call of this rollout."
    names = "Inputs", "Generated Outputs", "Feedback"
    room -= sum(map(len, names))
    feedback = shorten(feedback, room // 2)
    task = shorten(_text(result.input), min(MAX_INPUT_CHARS, room // 4))
    return dict(zip(names, (task, _tail(conversation, room - len(feedback) - len(task)), feedback), strict=True))


def _conversation(result: RolloutResult, prompt: str) -> Iterator[str]:
    """Yield the messages of calls that had the prompt; a call that continues another adds only its new ones."""
    num_shown = 0
    for call in result.calls:
        if prompt not in call.prompt_versions:
            continue
        messages = _messages(call.request)
        for message in messages[num_shown if num_shown < len(messages) else 0 :]:
            if message.get("role") not in ("system", "developer"):
                yield f"{message.get('role')}: {shorten(_content(message), MAX_TURN_CHARS)}"
        num_shown = len(messages) + 1
        yield f"assistant: {shorten(_content(_json(call.response)), MAX_TURN_CHARS)}"


def _reasons(result: RolloutResult) -> list[str]:
    """List errors, failed tools and the explanations of judges; each once."""
    return list(dict.fromkeys(filter(None, _find_reasons(result))))


def _find_reasons(result: RolloutResult) -> Iterable[str]:
    if result.error:
        yield f"Error: {shorten(result.error, MAX_WORDS_CHARS)}"
    for name, value in result.rewards.items():
        yield f"Reward {name}: {value:g}"
    for span in result.spans:
        yield from _span_reasons(span)
    if result.result and result.result not in ("null", str(result.reward)):
        yield f"The agent returned: {shorten(result.result, MAX_WORDS_CHARS)}"


def _span_reasons(span: Mapping[str, Any]) -> Iterator[str]:
    name, values = span["name"], span["attributes"]
    kind, called = kind_of(name, values), entity_name(name, values) or name
    if span["status"] == "error":
        yield f"{kind} {called} failed: {shorten(span['status_message'] or summarize(name, values), MAX_WORDS_CHARS)}"
    elif kind in ("tool", "retriever"):
        yield f"{kind} {called}: {shorten(summarize(name, values), MAX_WORDS_CHARS)}"
    for dimension, value in reward_dimensions(values):
        yield f"Reward {dimension}: {value}"
    yield from _words(values)
    events = _json(span.get("events") or "[]")
    for event in events if isinstance(events, list) else ():
        event_values = event.get("attributes") if isinstance(event, dict) else None
        if isinstance(event_values, dict):
            if (score := event_values.get(attributes.EVALUATION_SCORE)) is not None:
                yield f"Evaluation score: {score}"
            yield from _words(event_values)


def _words(values: Mapping[str, Any]) -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, str) and value and name.rpartition(".")[2] in WORDS:
            yield f"{name}: {shorten(value, MAX_WORDS_CHARS)}"


def _messages(request: str) -> list[Mapping[str, Any]]:
    body = _json(request)
    messages = body.get("messages") if isinstance(body, dict) else None
    if not isinstance(messages, list):
        return []
    return [message for message in messages if isinstance(message, dict)]


def _content(message: Any) -> str:
    if not isinstance(message, dict):
        return _text(message)
    parts = [_text(message[name]) for name in ("content", "tool_calls") if message.get(name)]
    return " ".join(parts)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _tail(text: str, limit: int) -> str:
    """Shorten a text to its last ``limit`` characters, since an error is usually at the end."""
    return text if len(text) <= limit else f"…{text[len(text) - limit + 1 :]}"
