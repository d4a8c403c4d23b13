"""The auditor on a real bus, with versions from the learner's publisher, and rollouts whose engine is world up."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from lightningbus.auditor.auditor import Auditor, AuditorError, samplers_of
from lightningbus.auditor.convictions import describe_verdict
from lightningbus.auditor.settings import AuditorSettings
from lightningbus.bus.client import Bus
from lightningbus.bus.weights.audit_log import AuditLog
from lightningbus.bus.weights.registry import WeightRegistry
from lightningbus.common.aio import cancel_and_wait
from lightningbus.learner.publishing.publisher import WeightPublisher
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.runners.protocol.answers.choice import pack_array
from lightningbus.schemas import ids, subjects
from lightningbus.schemas.audits.events import AuditVerdict, RolloutAudit
from lightningbus.schemas.fleet import Heartbeat
from lightningbus.schemas.spans import VersionSpan
from lightningbus.schemas.weights.release_policy import is_revoked
from tests.auditor.test_reference_model import make_model, save_weights
from tests.factories import batches, model_call
from tests.polling import HANG_SECONDS

pytestmark = pytest.mark.integration

PROMPT = [3, 1, 4, 1, 5]
NUM_TOKENS = 20


class World:
    """A model with versions on the bus, and engines that sample from it."""

    def __init__(self, bus: Bus, path: Path) -> None:
        self.bus, self.path = bus, path
        self.model: Any = make_model(path)
        settings = LearnerSettings(model_path=path, checkpoint_dir=path)
        self._publisher = WeightPublisher(bus, settings)
        self._number = 0

    async def publish_version(self, version: int) -> None:
        """The model's weights as they are now."""
        if version == 0:
            assert await self._publisher.refresh() is None
        weights = save_weights(self.model, self.path / f"{version}.safetensors")
        await self._publisher.publish(weights, version=version, epoch=1, step=version)

    async def sample(self, engine_id: str, version: int, error: float = 0.0) -> None:
        """One rollout; ``error`` is added to each log-probability that is reported."""
        tokens = list(PROMPT)
        logprobs = []
        with torch.inference_mode():
            for _ in range(NUM_TOKENS):
                distribution = torch.log_softmax(self.model(torch.tensor([tokens])).logits[0, -1], -1)
                token = int(torch.multinomial(distribution.exp(), 1))
                logprobs.append(float(distribution[token]) + error)
                tokens.append(token)
        (batch,) = batches("a", self._number, parts=1)
        self._number += 1
        call = replace(
            model_call(0, PROMPT, tokens[len(PROMPT) :]),
            logprobs=pack_array("f", logprobs),
            weight_versions=(VersionSpan(version=version, start=0, end=NUM_TOKENS, engine_id=engine_id),),
        )
        batch = replace(batch, mode="eval", spans=(replace(batch.spans[0], call=call),))
        await self.bus.publish(subjects.rollout("eval"), batch, msg_id=ids.batch_msg_id(batch.execution_id, 0))

    @asynccontextmanager
    async def auditing(self, **changes: Any) -> AsyncIterator[asyncio.Queue[RolloutAudit]]:
        """An auditor while the block runs; yields what it audits."""
        fields = {"share": 1.0, "max_cpu_share": 1.0, "engine_dtype": "float32", **changes}
        settings = AuditorSettings(model_path=self.path, id="auditor", work_dir=self.path / "auditor", **fields)
        audits: asyncio.Queue[RolloutAudit] = asyncio.Queue()

        async def on_audit(message: Any) -> None:
            from lightningbus.schemas.codec import decode

            audits.put_nowait(decode(RolloutAudit, message.data))

        await self.bus.nc.subscribe(subjects.ROLLOUT_AUDITED, cb=on_audit)
        running = asyncio.create_task(Auditor(self.bus, settings).run(asyncio.Event()))
        try:
            async with self.bus.fleet("auditor") as fleet, asyncio.timeout(HANG_SECONDS):
                while not any(beat.state == "auditing" for beat in fleet.members()):
                    await fleet.wait_for_change()
            yield audits
        finally:
            await cancel_and_wait(running)

    async def verdicts(self, count: int) -> tuple[AuditVerdict, ...]:
        """The verdicts, once there are so many."""
        async with asyncio.timeout(HANG_SECONDS):
            while len(verdicts := (await AuditLog(self.bus, "policy").refresh()).verdicts) < count:
                await asyncio.sleep(0.05)
        return verdicts


@pytest.fixture(autouse=True)
def normal_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody can take back the priority that an auditor gives up."""
    monkeypatch.setattr(os, "nice", lambda number: number)


@pytest.fixture
async def world(bus: Bus, tmp_path: Path) -> World:
    world = World(bus, tmp_path)
    await world.publish_version(0)
    return world


async def take(audits: "asyncio.Queue[RolloutAudit]", count: int) -> list[RolloutAudit]:
    async with asyncio.timeout(HANG_SECONDS):
        return [await audits.get() for _ in range(count)]


async def test_a_sound_engine_passes(world: World) -> None:
    async with world.auditing() as audits:
        for _ in range(5):
            await world.sample("n:1", 0)
        taken = await take(audits, 5)
    assert all(audit.num_tokens == NUM_TOKENS and audit.num_differing == 0 for audit in taken)
    assert max(audit.max_difference for audit in taken) < 1e-4
    assert not (await AuditLog(world.bus, "policy").refresh()).verdicts


async def test_an_engine_that_reports_other_log_probabilities_is_convicted(world: World) -> None:
    async with world.auditing() as audits:
        await world.sample("n:1", 0)
        await world.sample("n:2", 0, error=0.3)
        (verdict,) = await world.verdicts(1)
        assert (verdict.engine_id, verdict.version) == ("n:2", 0)
        assert "n:2" in describe_verdict(verdict)
        await world.sample("n:2", 0, error=0.3)
        await world.sample("n:1", 0)
        assert [audit.engine_id for audit in await take(audits, 3)] == ["n:1", "n:2", "n:1"]
    assert len(await world.verdicts(1)) == 1, "nobody is convicted twice"


async def test_a_version_that_fails_on_two_engines_is_revoked(world: World) -> None:
    async with world.auditing():
        await world.sample("n:1", 0, error=0.3)
        await world.verdicts(1)
        await world.sample("n:2", 0, error=0.3)
        engine, version = (await world.verdicts(3))[1:]
    assert (engine.engine_id, version.engine_id, version.version) == ("n:2", "", 0)
    async with asyncio.timeout(HANG_SECONDS):
        while not is_revoked(await WeightRegistry(world.bus, "policy").refresh(), 0):
            await asyncio.sleep(0.05)


async def test_tokens_are_compared_with_the_version_they_name(world: World) -> None:
    """Also after another learner has published other weights under the same number."""
    async with world.auditing() as audits:
        await world.sample("n:1", 0)
        with torch.no_grad():
            for parameter in world.model.parameters():
                parameter += 0.3 * torch.randn_like(parameter)
        await world.publish_version(1)
        await world.sample("n:1", 1)
        assert [audit.num_differing for audit in await take(audits, 2)] == [0, 0]
        await world.sample("n:1", 0)
        (wrong,) = await take(audits, 1)
    assert wrong.num_differing > NUM_TOKENS / 2 and wrong.version == 0


async def test_a_version_that_the_bus_does_not_have_convicts_nobody(world: World) -> None:
    async with world.auditing() as audits:
        await world.sample("n:1", 7)
        await world.sample("n:1", 0)
        assert [audit.version for audit in await take(audits, 1)] == [0]
    assert not (await AuditLog(world.bus, "policy").refresh()).verdicts


async def test_a_frozen_model_is_compared_with_its_directory_and_never_revoked(bus: Bus, tmp_path: Path) -> None:
    """No version of it is on the bus."""
    world = World(bus, tmp_path)
    world.model.save_pretrained(tmp_path)
    async with world.auditing(frozen=True) as audits:
        await world.sample("n:1", 1)  # it has no such version
        await world.sample("n:1", 0)
        (sound,) = await take(audits, 1)
        assert (sound.version, sound.num_differing) == (0, 0) and sound.max_difference < 1e-4
        for number, engine_id in enumerate(("n:2", "n:3"), 1):
            await world.sample(engine_id, 0, error=0.3)
            assert len(await world.verdicts(2 * number - 1)) == 2 * number - 1
        await take(audits, 2)
    assert not (await WeightRegistry(bus, "policy").refresh()).decisions


async def test_an_auditor_of_a_frozen_model_needs_its_weights(bus: Bus, tmp_path: Path) -> None:
    make_model(tmp_path)  # its config alone
    settings = AuditorSettings(model_path=tmp_path, frozen=True, work_dir=tmp_path / "auditor")
    with pytest.raises(AuditorError, match="model_path: "):
        await Auditor(bus, settings).run(asyncio.Event())


async def test_what_cannot_be_read_is_passed_over(world: World) -> None:
    async with world.auditing() as audits:
        headers = {subjects.MSG_ID_HEADER: ids.batch_msg_id("e", 0)}
        await world.bus.nc.publish(subjects.rollout("eval"), b"garbage", headers=headers)
        await world.bus.nc.publish(subjects.rollout("eval"), b"")
        await world.sample("n:1", 0)
        assert len(await take(audits, 1)) == 1


def test_the_engines_of_a_node_are_in_its_heartbeat() -> None:
    beat = Heartbeat(role="inference", id="n", state="ready", version=4, sent_at_ns=1, status={"engine_id": "n:1"})
    assert samplers_of(beat) == [("n:1", 4)]
    assert samplers_of(replace(beat, status={"engine_id": "n:1", "versions": [3, 4]})) == [("n:1", 3), ("n:1", 4)]
    assert samplers_of(replace(beat, status={})) == samplers_of(replace(beat, version=None)) == []


async def test_a_model_that_cannot_be_computed_is_named_at_the_start(bus: Bus, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "t5"}')
    settings = AuditorSettings(model_path=tmp_path, engine_dtype="float32", work_dir=tmp_path)
    with pytest.raises(AuditorError, match=f"{tmp_path} is a model that transformers cannot compute for the auditor"):
        await Auditor(bus, settings)._make_reference()
