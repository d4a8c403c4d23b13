"""The auditor's verdicts on a model, as the bus has them."""

import asyncio
import secrets
import time

from lightningbus.bus.client import Bus
from lightningbus.bus.errors import FencedError
from lightningbus.bus.weights.signed_log import SignedLog
from lightningbus.schemas import subjects
from lightningbus.schemas.audits.events import AuditState, AuditVerdict
from lightningbus.schemas.audits.quarantine import add_verdict

RETRY_SECONDS = 0.2
PATIENCE_SECONDS = 60.0


class AuditLog:
    """Verdicts on a model; the last trusted message is the state, and verdicts are added by compare-and-set."""

    def __init__(self, bus: Bus, model: str, from_leader: bool = False) -> None:
        """Prepare to read a model's audits.

        ``from_leader``: see `SignedLog`; it gives a reader the newest verdict for certain.
        """
        self._bus, self._subject = bus, subjects.audit(model)
        self._log = SignedLog(bus, self._subject, model, AuditState, from_leader)
        self.state = AuditState(model=model)
        """State at the last read."""

    async def refresh(self) -> AuditState:
        """Look up the state; raises nats' errors and `BusError`."""
        return (await self._read())[0]

    async def append(self, verdict: AuditVerdict) -> AuditState:
        """Add a verdict; raises as `Bus.publish`, `FencedError` if others have been quicker for a minute."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            before, sequence = await self._read()
            after = add_verdict(before, verdict)
            msg_id = f"audit:{after.model}:{sequence}:{secrets.token_hex(16)}"
            try:
                await self._bus.publish(self._subject, after, msg_id=msg_id, expect_last=sequence, unique=True)
            except FencedError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(RETRY_SECONDS)
                continue
            self.state = after
            return after

    async def _read(self) -> tuple[AuditState, int]:
        """Read the state, and the sequence of the last message on the subject, trusted or not."""
        last = await self._log.get_last()
        async for entry in self._log.newest_first(last):
            self.state = entry.event
            break
        return self.state, last.sequence if last is not None else 0
