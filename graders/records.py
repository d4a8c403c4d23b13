"""Records of a grade: the batch that ends an attempt, with its spans, and the event about the grade. Pure."""

from collections.abc import Iterator

from msgspec.structs import replace

from lightningbus.graders.grade import Grade
from lightningbus.graders.judges.answer import JudgeCall
from lightningbus.graders.submission import Submission
from lightningbus.schemas import ids
from lightningbus.schemas.grading import GradingRequest, RolloutGraded
from lightningbus.schemas.semconv import attributes
from lightningbus.schemas.spans import MAX_REWARDS, AttemptResult, Span, SpanBatch
from lightningbus.schemas.text import shorten

MAX_ERROR = 2000
MAX_ANSWER = 4000
"""Characters of a judge's answer that its span keeps."""
FAILED = "grading_failed"


def build_ending(request: GradingRequest, grade: Grade | None, problem: str = "") -> SpanBatch:
    """Complete the batch that ends an attempt. Without a grade an attempt that ended well could not be graded."""
    batch, end = request.ending, request.ending.end
    assert end is not None
    if grade is None:
        return replace(batch, end=_fail(end, problem) if problem and end.outcome == "ok" else end)
    spans = tuple(_build_spans(batch, grade))
    rewards = {**end.rewards, **grade.rewards}
    while len(rewards) > MAX_REWARDS:  # the agent's own give way
        del rewards[next(name for name in rewards if name not in grade.rewards)]
    graded = replace(
        end,
        reward=grade.reward,
        rewards=rewards,
        reward_span=end.reward_span or spans[0].span_id,
        num_spans=end.num_spans + len(spans),
    )
    return replace(batch, spans=spans, end=graded if grade.reward is not None else _fail(graded, grade.error))


def build_event(submission: Submission, grade: Grade, grading: str, graders_sha256: str) -> RolloutGraded:
    """Build the event about a grade."""
    uncached_calls = [call for call in grade.calls if not call.is_cached]
    return RolloutGraded(
        run_id=submission.run_id,
        task_id=submission.task_id,
        rollout_id=submission.rollout_id,
        execution_id=submission.execution_id,
        grading=grading,
        graders_sha256=graders_sha256,
        reward=grade.reward,
        rewards=dict(grade.rewards),
        error=shorten(grade.error, MAX_ERROR),
        num_judge_calls=len(grade.calls),
        num_cached=len(grade.calls) - len(uncached_calls),
        prompt_tokens=sum(call.answer.prompt_tokens for call in uncached_calls),
        response_tokens=sum(call.answer.response_tokens for call in uncached_calls),
        cost=grade.cost,
        started_at_ns=grade.started_ns,
        graded_at_ns=grade.ended_ns,
    )


def _fail(end: AttemptResult, problem: str) -> AttemptResult:
    return replace(end, outcome=FAILED, reward=None, error=shorten(problem, MAX_ERROR))


def _build_spans(batch: SpanBatch, grade: Grade) -> Iterator[Span]:
    """Yield the span of the grade, and one for each question to a judge below it."""
    execution, rollout = batch.execution_id, batch.rollout_id
    span_attributes: dict[str, object] = {
        attributes.RUN: batch.run_id,
        attributes.ROLLOUT: rollout,
        attributes.GRADER_COST: grade.cost,
    }
    if grade.reward is not None:
        span_attributes[attributes.REWARD] = grade.reward
    span_attributes |= {f"{attributes.NAMED_REWARD_PREFIX}{name}": value for name, value in grade.rewards.items()}
    parent = Span(
        trace_id=ids.trace_id(rollout),
        span_id=ids.span_id(rollout, execution, "grade"),
        parent_span_id=ids.root_span_id(rollout, execution),
        name="grade",
        start_ns=grade.started_ns,
        end_ns=grade.ended_ns,
        status="error" if grade.error else "ok",
        status_message=shorten(grade.error, 500),
        scope=attributes.GRADER_SCOPE,
        attributes=span_attributes,
    )
    yield parent
    for index, call in enumerate(grade.calls):
        yield _build_call_span(parent, ids.span_id(rollout, execution, "grade", index), call)


def _build_call_span(parent: Span, span_id: str, call: JudgeCall) -> Span:
    return Span(
        trace_id=parent.trace_id,
        span_id=span_id,
        parent_span_id=parent.span_id,
        name=f"chat {call.model}",
        kind="client",
        start_ns=call.started_ns,
        end_ns=call.ended_ns,
        status="ok",
        scope=attributes.GRADER_SCOPE,
        attributes={
            attributes.OPERATION: "chat",
            attributes.REQUEST_MODEL: call.model,
            attributes.INPUT_TOKENS: call.answer.prompt_tokens,
            attributes.OUTPUT_TOKENS: call.answer.response_tokens,
            attributes.GRADER: call.grader,
            attributes.GRADER_CACHED: call.is_cached,
            attributes.GRADER_REQUEST_SHA256: call.request_sha256,
            attributes.GRADER_COST: call.cost,
            attributes.OUTPUT: shorten(call.answer.text, MAX_ANSWER),
        },
    )
