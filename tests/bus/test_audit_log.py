"""Verdicts on a model: complete, in order, and none lost to another writer."""

import asyncio
import subprocess
import sys

from lightningbus.bus.client import Bus
from lightningbus.bus.weights.audit_log import AuditLog
from lightningbus.schemas import subjects
from lightningbus.schemas.audits.events import AuditState, AuditVerdict
from lightningbus.schemas.audits.quarantine import standing_verdicts
from tests.commands import environment
from tests.polling import HANG_SECONDS


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


async def test_a_person_takes_a_verdict_back(bus: Bus, nats_url: str) -> None:
    log = AuditLog(bus, "policy")
    await log.append(verdict(1))
    await log.append(verdict(2))
    command = [sys.executable, "-P", "-m", "lightningbus", "audit", "--bus", nats_url, "--overturn"]

    async def overturn(suspect: str) -> "subprocess.CompletedProcess[str]":
        return await asyncio.to_thread(
            subprocess.run,
            [*command, suspect],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
            check=False,
        )

    process = await overturn("n:1")
    assert process.returncode == 0, process.stderr
    assert [each.engine_id for each in standing_verdicts((await log.refresh()).verdicts)] == ["n:2"]
    process = await overturn("n:1")
    assert process.returncode == 2 and "standing: n:2" in process.stderr


async def test_models_have_verdicts_of_their_own(bus: Bus) -> None:
    await AuditLog(bus, "policy").append(verdict(1))
    assert not (await AuditLog(bus, "other").refresh()).verdicts
