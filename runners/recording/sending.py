"""Publishing of an attempt's recorded spans, and of the request for its grade."""

import math

from lightningbus.bus.client import Bus
from lightningbus.runners.recording.attempt import AttemptRecorder
from lightningbus.schemas import ids, subjects


async def send(bus: Bus, recorder: AttemptRecorder, seconds: float = math.inf) -> None:
    """Publish what an attempt has cut so far, in order; what fails is sent first the next time.

    A full stream is waited for, however long. Raises as `Bus.publish`.
    """
    traceparent = ids.traceparent(recorder.trace_id, recorder.root_id)
    async with recorder.sending:
        while recorder.outbox:
            batch = recorder.outbox[0]
            subject, msg_id = subjects.rollout(batch.mode), ids.batch_msg_id(batch.execution_id, batch.sequence)
            await bus.publish(subject, batch, msg_id=msg_id, traceparent=traceparent, timeout=seconds)
            recorder.outbox.pop(0)
        if (request := recorder.grading_request) is not None:
            subject, msg_id = subjects.grading(request.ending.mode), ids.grading_msg_id(request.ending.execution_id)
            await bus.publish(subject, request, msg_id=msg_id, traceparent=traceparent, timeout=seconds)
            recorder.grading_request = None
