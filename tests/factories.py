"""Rollouts and batches as runners would make them, without runners."""

from array import array
from collections.abc import Sequence
from typing import Any

from lightningbus.learner.rollouts.assembler import Rollout
from lightningbus.learner.rollouts.groups import RolloutGroup
from lightningbus.schemas.base import Outcome
from lightningbus.schemas.spans import AttemptResult, ModelCall, Span, SpanBatch, VersionSpan
from lightningbus.schemas.trajectory.attempt_selection import resolution_of

START_NS = 1_790_000_000_000_000_000
SECOND_NS = 1_000_000_000


def model_call(
    index: int, prompt: Sequence[int], response: Sequence[int], /, version: int = 0, role: str = "", **fields: Any
) -> ModelCall:
    """A call whose tokens all had probability 1/e; ``fields`` are `ModelCall`'s others."""
    attributes = {"model": "policy", "request": "", "response": "", **fields}
    return ModelCall(
        index=index,
        role=role,
        node="n",
        prompt_ids=array("I", prompt).tobytes(),
        response_ids=array("I", response).tobytes(),
        logprobs=array("f", [-1.0] * len(response)).tobytes(),
        weight_versions=(VersionSpan(version=version, start=0, end=len(response)),),
        **attributes,
    )


def rollout(
    task: str,
    sample: int,
    reward: float | None,
    *,
    outcome: Outcome = "ok",
    version: int = 0,
    samples: int = 4,
    calls: Sequence[ModelCall] | None = None,
    rewards: Sequence[float] = (),
) -> Rollout:
    """A finished rollout; of two calls, the second extending the first, unless others are given."""
    if calls is None:
        second = model_call(1, [5, 6, 7, 8, 9, 4], [10, 11, 12], version)
        calls = (model_call(0, [5, 6, 7], [8, 9], version), second)
    return Rollout(
        id=f"{task}.{sample}",
        task_id=task,
        sample_index=sample,
        group_size=samples,
        attempt=1,
        execution_id=f"{task}.{sample}-1",
        outcome=outcome,
        resolution=resolution_of(AttemptResult(outcome=outcome, num_spans=0, started_ns=0, ended_ns=0)),
        reward=reward,
        calls=tuple(calls),
        rewards=tuple(rewards) or (0.0,) * len(calls),
        first_sequence=sample + 1,
        last_sequence=sample + 1,
    )


def group(task: str, *members: Rollout) -> RolloutGroup:
    """A group that is ready."""
    return RolloutGroup(task, len(members), 0.0, {member.id: member for member in members})


def batches(
    task: str,
    sample: int,
    reward: float | None = 1.0,
    *,
    attempt: int = 1,
    parts: int = 2,
    run: str = "run",
    samples: int = 4,
    outcome: Outcome = "ok",
    final: bool = True,
    error: str = "",
) -> list[SpanBatch]:
    """One attempt in ``parts`` span batches, a model call in each."""
    built = []
    times = {"start_ns": START_NS, "end_ns": START_NS + SECOND_NS}
    for part in range(parts):
        call = model_call(part, [5, 6], [7, 8, 9])
        span = Span(trace_id="t", span_id=f"{part}", name="chat", call=call, **times)
        ended = {"started_ns": START_NS, "ended_ns": START_NS + SECOND_NS}
        end = AttemptResult(outcome=outcome, is_final=final, reward=reward, num_spans=parts, error=error, **ended)
        built.append(
            SpanBatch(
                run_id=run,
                task_id=task,
                rollout_id=f"{task}.{sample}",
                sample_index=sample,
                group_size=samples,
                attempt=attempt,
                execution_id=f"{task}.{sample}-{attempt}",
                agent="default",
                mode="train",
                runner="r",
                sequence=part,
                spans=(span,),
                end=end if part == parts - 1 else None,
            )
        )
    return built
