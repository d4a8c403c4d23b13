"""An attempt as graders see it. Pure."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lightningbus.graders.settings import AGENT_REWARD
from lightningbus.schemas.grading import GradingRequest


@dataclass(frozen=True, slots=True)
class Submission:
    """One finished attempt of a rollout."""

    run_id: str
    task_id: str
    rollout_id: str
    execution_id: str
    sample_index: int
    group_size: int
    input: Any
    """The task's input."""
    result: Any
    """The agent's return value."""
    messages: tuple[Mapping[str, Any], ...] = ()
    """Messages of the last model call, its answer included."""
    labels: Mapping[str, str] = field(default_factory=dict)
    own_reward: float | None = None
    """Reward that the agent gave itself."""

    def describe(self) -> dict[str, Any]:
        """Describe the rollout beside input and result, for functions that ask for it."""
        return {
            "run": self.run_id,
            "task": self.task_id,
            "rollout": self.rollout_id,
            "sample_index": self.sample_index,
            "group_size": self.group_size,
            "labels": dict(self.labels),
            "messages": [*self.messages],
            AGENT_REWARD: self.own_reward,
        }


def read_request(request: GradingRequest) -> Submission:
    """Read the submission out of a request for a grade."""
    batch = request.ending
    assert batch.end is not None
    return Submission(
        run_id=batch.run_id,
        task_id=batch.task_id,
        rollout_id=batch.rollout_id,
        execution_id=batch.execution_id,
        sample_index=batch.sample_index,
        group_size=batch.group_size,
        input=request.input,
        result=parse_json(batch.end.result),
        messages=read_messages(request.request, request.response),
        labels=request.labels,
        own_reward=batch.end.reward,
    )


def parse_json(text: str) -> Any:
    """Parse JSON; what was cut and is none any more stays text."""
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        return text


def read_messages(request: str, response: str) -> tuple[Mapping[str, Any], ...]:
    """Read the conversation out of a model call: the messages of its request, and its answer."""
    body, answer = parse_json(request), parse_json(response)
    if not isinstance(body, Mapping):
        return ({"role": "user", "content": request},) if request else ()
    messages = body.get("messages", body.get("input"))
    if isinstance(messages, str) or messages is None:
        messages = [{"role": "user", "content": messages or str(body.get("prompt", ""))}]
    known = [message for message in messages if isinstance(message, Mapping)] if isinstance(messages, list) else []
    if answer is not None and answer != "":
        known.append(answer if isinstance(answer, Mapping) else {"role": "assistant", "content": str(answer)})
    return tuple(known)


def format_messages(messages: Sequence[Mapping[str, Any]], max_chars: int) -> str:
    """Write a conversation as text; of a longer one the beginning is left out."""
    text = "\n\n".join(f"[{message.get('role', 'message')}]\n{_format_content(message)}" for message in messages)
    return text if len(text) <= max_chars else f"… ({len(text) - max_chars} characters left out)\n{text[-max_chars:]}"


def _format_content(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    parts = [content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)] if content else []
    if calls := message.get("tool_calls"):
        parts.append(json.dumps(calls, ensure_ascii=False))
    return "\n".join(parts)
