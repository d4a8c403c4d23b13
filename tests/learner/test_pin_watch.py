"""A learner that waits for a newer version than the pinned one says who pinned it, and what to do."""

import asyncio
from pathlib import Path

import pytest

from lightningbus.bus.client import Bus
from lightningbus.bus.fleet.heartbeat_text import describe
from lightningbus.bus.weights.registry import WeightRegistry
from lightningbus.learner.learner import Learner
from lightningbus.learner.publishing.pin_watch import describe_pin
from lightningbus.schemas.fleet import Heartbeat
from lightningbus.schemas.weights.events import ReleaseDecision, ReleaseState
from lightningbus.schemas.weights.release_policy import EVALUATE_ACTOR, MAX_DECISIONS, TRAIN_ACTOR, apply_decision
from tests.learner.conftest import settings_for, tiny_model
from tests.learner.test_unbuildable import Loop, fake_trainer
from tests.polling import HANG_SECONDS

REMEDY = "`lightningbus weights unpin --model critic` lets nodes serve newer ones"


def decide(action: str, version: int, actor: str, reason: str = "") -> ReleaseDecision:
    return ReleaseDecision(action=action, version=version, actor=actor, reason=reason, decided_at_ns=0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("decisions", "expected"),
    [
        ([], ""),
        ([decide("pinned", 1, "ann")], f"version 1 is pinned by ann: {REMEDY}"),
        ([decide("pinned", 1, "ann", "it is best")], f"version 1 is pinned by ann (it is best): {REMEDY}"),
        ([decide("pinned", 1, "ann"), decide("unpinned", 1, "ann")], ""),
        ([decide("pinned", 3, "ann")], ""),  # nodes load it now
        ([decide("pinned", 1, EVALUATE_ACTOR)], ""),
        ([decide("pinned", 1, f"{TRAIN_ACTOR}small")], ""),
        (
            [decide("pinned", 1, "ann"), *(decide("approved", 2 + n, "node") for n in range(MAX_DECISIONS))],
            f"version 1 is pinned: {REMEDY}",
        ),
    ],
)
def test_the_pin_of_a_person_is_described_with_its_remedy(decisions: list[ReleaseDecision], expected: str) -> None:
    release = ReleaseState(model="critic")
    for decision in decisions:
        release = apply_decision(release, decision)
    assert describe_pin(release, 3) == expected


@pytest.mark.integration
async def test_the_line_of_a_learner_says_that_a_pin_holds_it_up(bus: Bus, tmp_path: Path) -> None:
    learner = Learner(bus, settings_for(tiny_model(tmp_path / "model"), checkpoint_dir=tmp_path))
    loop = learner._loop = Loop(fake_trainer()).training
    loop.dispatcher.missing_version = None
    node = {"state": "ready", "model": "policy", "version": 1, "address": "", "status": {}}

    def line() -> str:
        return describe(Heartbeat(role="learner", id="l", sent_at_ns=0, **learner._describe()))

    async with learner._nodes as nodes, bus.heartbeat("inference", "n", lambda: node) as heartbeat:
        watching = asyncio.create_task(learner._pin_watch.run(nodes, lambda: loop.missing_served_version))
        releases = WeightRegistry(bus, "policy")
        await releases.append_decision("pinned", 1, actor="ann@desk")
        assert "pinned" not in line(), "training waits for no version yet"
        loop.missing_version = 3
        async with asyncio.timeout(HANG_SECONDS):
            while "pinned" not in line():
                await heartbeat.send_now()
                await nodes.wait_for_change()
            assert (
                "waits for a node that serves version 3 or a newer one; version 1 is pinned by ann@desk: "
                "`lightningbus weights unpin --model policy` lets nodes serve newer ones" in line()
            )
            await releases.append_decision("unpinned", 1, actor="ann@desk")
            while "pinned" in line():
                await heartbeat.send_now()
                await nodes.wait_for_change()
        assert "version 3 or a newer one" in line()
        watching.cancel()
