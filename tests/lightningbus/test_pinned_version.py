"""Evaluations take turns at the version that nodes are pinned to."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from lightningbus.bus.client import Bus
from lightningbus.bus.weights.registry import WeightRegistry
from lightningbus.run.evaluation.evaluation import Evaluation
from lightningbus.run.evaluation.held_out import HeldOut, HeldOutSet
from lightningbus.run.evaluation.pinned_version import VersionPins, pinned, wait_for_evaluations
from lightningbus.run.evaluation.request import RolloutRequest
from lightningbus.run.settings.evaluation import EvalSettings
from lightningbus.schemas.weights.release_policy import EVALUATE_ACTOR, TRAIN_ACTOR, find_pin
from tests.inference.test_updater import publish
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


def make_held_out(bus: Bus, every: int, evaluated: list[int]) -> tuple[HeldOut, VersionPins]:
    """The evaluations of a job that starts now, of which some have ended."""
    settings = EvalSettings.model_validate({"tasks": "heldout.jsonl", "every": every, "sampling": ["greedy"]})
    ended = [
        Evaluation(
            label="greedy", version=version, versions={"policy": version}, mean_reward=0.5, standard_error=0.1,
            num_tasks=1, rollouts=1, ok=1, seconds=1.0,
        )
        for version in evaluated
    ]  # fmt: skip
    pins = VersionPins(bus, "small", ["policy"])
    none: Any = None
    return HeldOut(none, none, [HeldOutSet(RolloutRequest(), settings, [], ended)], pins, none), pins


async def test_a_job_that_is_resumed_lets_nodes_go_back_to_no_version_once_learners_train(
    bus: Bus, tmp_path: Path
) -> None:
    """They would sample tasks that are out by weights that are older than the learner knows."""
    for version in range(5):
        await publish(bus, tmp_path, version)
    held_out, _ = make_held_out(bus, 2, [0])
    assert await held_out.pin_due(is_over=False) == {"policy": 2}, "nothing was trained since it was published"
    held_out, pins = make_held_out(bus, 2, [0])
    assert await held_out.pin_interrupted() == {"policy": 2}, "before learners start it ends what was begun"
    await pins.unpin()
    held_out, _ = make_held_out(bus, 2, [0, 2])
    assert await held_out.pin_interrupted() is None
    assert await held_out.pin_due(is_over=False) == {"policy": 4}
    held_out, _ = make_held_out(bus, 3, [0])
    assert await held_out.pin_interrupted() is None, "the last that was begun is the newest"
    assert await held_out.pin_due(is_over=False) == {"policy": 4}, "in place of 3"
    assert find_pin(await WeightRegistry(bus, "policy").refresh()) is not None
