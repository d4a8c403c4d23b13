"""A convicted engine is stopped, and only that one."""

import asyncio

import pytest

from lightningbus.bus.client import Bus
from lightningbus.bus.weights.audit_log import AuditLog
from lightningbus.inference.audit_watch import watch_audits
from lightningbus.inference.engine.base import EngineError
from lightningbus.schemas.audits.events import AuditVerdict
from tests.polling import HANG_SECONDS

pytestmark = pytest.mark.integration


def verdict(engine_id: str) -> AuditVerdict:
    return AuditVerdict(
        engine_id=engine_id, version=3, failed_version=3, reason="it differs", num_tokens=1, evidence=30.0,
        decided_at_ns=1,
    )  # fmt: skip


async def test_a_verdict_on_the_engine_stops_it_at_once(bus: Bus) -> None:
    stopped = asyncio.Event()

    async def stop() -> None:
        stopped.set()

    watching = asyncio.create_task(watch_audits(bus, "policy", "n:1", stop))
    log = AuditLog(bus, "policy")
    await log.append(verdict("n:2"))
    await log.append(verdict(""))
    await bus.nc.flush()
    assert not stopped.is_set()
    await log.append(verdict("n:1"))
    with pytest.raises(EngineError, match="n:1 fails the audit: it differs"):
        async with asyncio.timeout(HANG_SECONDS):
            await watching
    assert stopped.is_set()


async def test_a_verdict_from_before_the_start_counts(bus: Bus) -> None:
    await AuditLog(bus, "policy").append(verdict("n:1"))

    async def stop() -> None:
        return

    with pytest.raises(EngineError):
        async with asyncio.timeout(HANG_SECONDS):
            await watch_audits(bus, "policy", "n:1", stop)
