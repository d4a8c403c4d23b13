"""Publishing of an attempt's recorded spans."""

import math

from lightningbus.bus.client import Bus
from lightningbus.runners.recording.attempt import AttemptRecorder
from lightningbus.schemas import ids, subjects


async def send(bus: Bus, recorder: AttemptRecorder, seconds: float = math.inf) -> None:
    """Publish what an attempt has cut so far, in order; what fails is sent first the next time.

    A full stream is waited for, however long. Raises as `Bus.publish`.
    """
    async with recorder.sending:
        while recorder.outbox:
            batch = recorder.outbox[0]
            await bus.publish(
                subjects.rollout(batch.mode),
                batch,
                msg_id=ids.batch_msg_id(batch.execution_id, batch.sequence),
                traceparent=ids.traceparent(recorder.trace_id, recorder.root_id),
                timeout=seconds,
            )
            recorder.outbox.pop(0)
