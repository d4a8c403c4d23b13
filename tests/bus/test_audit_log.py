"""Verdicts on a model: complete, in order, and none lost to another writer."""

import asyncio

from bus.client import Bus
from bus.weights.audit_log import AuditLog
from schemas import subjects
from schemas.audit import AuditState, AuditVerdict


def verdict(number: int) -> AuditVerdict:
    return AuditVerdict(
        engine_id=f"n:{number}", version=number, failed_version=number, reason="r", num_tokens=1, evidence=30.0,
        decided_at_ns=number,
    )  # fmt: skip


async def test_without_a_verdict_the_state_is_empty(bus: Bus) -> None:
    assert await AuditLog(bus, "policy").refresh() == AuditState(model="policy")


async def test_verdicts_of_several_writers_are_all_kept(bus: Bus) -> None:
    await asyncio.gather(*(AuditLog(bus, "policy").append(verdict(number)) for number in range(8)))
    state = await AuditLog(bus, "policy").refresh()
    assert sorted(entry.version for entry in state.verdicts) == list(range(8))


async def test_a_message_that_is_none_is_passed_over(bus: Bus) -> None:
    log = AuditLog(bus, "policy")
    await log.append(verdict(1))
    await bus.js.publish(subjects.audit("policy"), b"garbage")
    assert [entry.version for entry in (await AuditLog(bus, "policy").refresh()).verdicts] == [1]
    await log.append(verdict(2))
    assert [entry.version for entry in (await AuditLog(bus, "policy").refresh()).verdicts] == [1, 2]


async def test_models_have_verdicts_of_their_own(bus: Bus) -> None:
    await AuditLog(bus, "policy").append(verdict(1))
    assert not (await AuditLog(bus, "other").refresh()).verdicts
