"""Publishes the alerts of one detector: each when it begins, and again when it is over."""

import logging
import time
from collections.abc import Mapping
from typing import NamedTuple

from lightningbus.bus.client import PUBLISH_SECONDS, Bus
from lightningbus.bus.jetstream.batch_get import batch_get, sequence_of
from lightningbus.schemas import subjects
from lightningbus.schemas.codec import DecodeError, decode
from lightningbus.schemas.fleet import Alert

BATCH = 256
"""Stored alerts of one request."""
READ_SECONDS = 10.0
MSG_ID = "Nats-Msg-Id"

log = logging.getLogger(__name__)


class Reason(NamedTuple):
    """The role that is stalled, missing or wrong, and why."""

    role: str
    sentence: str


class AlertPublisher:
    """Keeps what is firing; ``detector`` is a part of the ids of its messages."""

    def __init__(self, bus: Bus, detector: str, timeout: float = PUBLISH_SECONDS) -> None:
        self._bus, self._detector, self._timeout = bus, detector, timeout
        self._firing: dict[str, Reason] = {}

    @property
    def firing(self) -> dict[str, str]:
        """Sentences of the alerts that have begun and are not over, by key."""
        return {key: reason.sentence for key, reason in self._firing.items()}

    async def restore(self) -> None:
        """Take over what an earlier process of this detector left firing, so that the next `update` may end it.

        Raises `BusError` where the stream of alerts cannot be read.
        """
        begin, since = f"alert:{self._detector}:", 0
        while True:
            request = {"batch": BATCH, "seq": since + 1, "next_by_subj": subjects.ALERT}
            async with batch_get(self._bus.nc, subjects.ALERTS, request, READ_SECONDS) as messages:
                page = [message async for message in messages]
            for message in page:
                msg_id = (message.headers or {}).get(MSG_ID, "")
                if not msg_id.startswith(begin):
                    continue
                try:
                    alert = decode(Alert, message.data)
                except DecodeError:  # of another release; the store has it as a dead letter
                    continue
                key = msg_id.removeprefix(begin).rpartition(":")[0]
                if alert.resolved:
                    self._firing.pop(key, None)
                else:
                    self._firing[key] = Reason(alert.role, alert.reason)
            if len(page) < BATCH:
                return
            since = sequence_of(page[-1])

    async def update(self, reasons: Mapping[str, Reason]) -> None:
        """Publish what has begun and what is over since the last call; ``reasons`` are all that hold now, by a key.

        An alert ends with the sentence it began with. Raises as `Bus.publish`; what was not published is published by
        the next call.
        """
        for key in [key for key in self._firing if key not in reasons]:
            log.info("over: %s", self._firing[key].sentence)
            await self._publish(key, self._firing[key], is_over=True)
            del self._firing[key]
        for key in [key for key in reasons if key not in self._firing]:
            log.warning("ALERT: %s", reasons[key].sentence)
            await self._publish(key, reasons[key], is_over=False)
            self._firing[key] = reasons[key]

    async def _publish(self, key: str, reason: Reason, is_over: bool) -> None:
        now_ns = time.time_ns()
        alert = Alert(role=reason.role, reason=reason.sentence, resolved=is_over, fired_at_ns=now_ns)  # type: ignore[arg-type]
        msg_id = f"alert:{self._detector}:{key}:{now_ns}"
        await self._bus.publish(subjects.ALERT, alert, msg_id=msg_id, timeout=self._timeout)
