"""Publishing a task: the span that opens its rollout's trace."""

from schemas import attributes, identity
from schemas.events import Span, Task


def producer_span(task: Task, subject: str, start_ns: int, end_ns: int) -> Span:
    """The PRODUCER span of one published sample, by OpenTelemetry's messaging conventions."""
    rollout = identity.rollout_id(task.id, task.sample)
    return Span(
        trace_id=identity.trace_id(rollout),
        span_id=identity.publish_span_id(rollout),
        name=f"send {subject}",
        kind="producer",
        start_ns=start_ns,
        end_ns=end_ns,
        status="ok",
        scope="lightningbus.bus",
        attributes={
            attributes.MESSAGING_SYSTEM: "nats",
            attributes.MESSAGING_OPERATION: "send",
            attributes.MESSAGING_DESTINATION: subject,
            attributes.MESSAGE_ID: identity.task_msg_id(rollout),
            attributes.RUN: task.run,
            attributes.TASK: task.id,
            attributes.ROLLOUT: rollout,
        },
    )
