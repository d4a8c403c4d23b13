"""Tasks that go on from recorded rollouts: the tokens before each model call."""

import json
from collections.abc import Iterator
from typing import Any

from lightningbus.learner.rollouts.assembler import Rollout
from lightningbus.learner.transitions.transitions import build_transitions
from lightningbus.schemas.trajectory.prefix_encoding import expand_calls
from lightningbus.tasks.recorded_prompts import LIMITS


def list_prompt_tasks(rollout: Rollout) -> Iterator[dict[str, Any]]:
    """Yield a task for each model call of a rollout, which `lightningbus.tasks.recorded_prompts.answer` answers."""
    for call, expanded in zip(build_transitions(rollout.calls), expand_calls(rollout.calls), strict=True):
        request = json.loads(expanded.request)
        limits = {name: request[name] for name in LIMITS if request.get(name) is not None}
        if (longest := request.get("max_completion_tokens")) is not None:
            limits["max_tokens"] = longest
        yield {
            "id": f"{rollout.execution_id}-{call.index}",
            "input": {"prompt_ids": call.prompt_ids.tolist(), **limits},
            "labels": {"rollout": rollout.id, "task": rollout.task_id},
        }
