"""Evaluations take turns at the version that nodes are pinned to."""

import asyncio

import pytest

from lightningbus.bus.client import Bus
from lightningbus.bus.weights.registry import WeightRegistry
from lightningbus.run.evaluation.pinned_version import (
    EVALUATE_ACTOR,
    TRAIN_ACTOR,
    find_pin,
    pinned,
    wait_for_evaluations,
)
from tests.polling import HANG_SECONDS

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("actor", [EVALUATE_ACTOR, f"{TRAIN_ACTOR}small"])
async def test_an_evaluation_of_others_is_waited_for_and_a_pin_of_somebody_is_not(bus: Bus, actor: str) -> None:
    registry, other = WeightRegistry(bus, "policy"), WeightRegistry(bus, "policy")
    assert await wait_for_evaluations(bus, registry, "policy") is None
    await other.append_decision("pinned", 3, actor=actor)
    waiting = asyncio.create_task(wait_for_evaluations(bus, registry, "policy"))
    done, _ = await asyncio.wait([waiting], timeout=0.5)
    assert not done
    await other.append_decision("pinned", 4, actor="ann")
    pin = await asyncio.wait_for(waiting, HANG_SECONDS)
    assert pin is not None and (pin.version, pin.actor) == (4, "ann")


@pytest.mark.parametrize("before", [None, ("ann", 1), (f"{TRAIN_ACTOR}small", 2)])
async def test_a_pin_is_put_back_in_the_name_of_its_actor(bus: Bus, before: tuple[str, int] | None) -> None:
    """So that a training job that is resumed can take off its own."""
    registry = WeightRegistry(bus, "policy")
    if before is not None:
        await registry.append_decision("pinned", before[1], actor=before[0])
    async with pinned(registry, 7):
        assert (await WeightRegistry(bus, "policy").refresh()).pinned == 7
    pin = find_pin(await WeightRegistry(bus, "policy").refresh())
    assert (pin and (pin.actor, pin.version)) == before
