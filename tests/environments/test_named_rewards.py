"""Metrics of an environment that become rewards by name."""

import math

from lightningbus.environments.named_rewards import MAX_NAME, MAX_REWARD, MAX_REWARDS, name_rewards
from lightningbus.runners.recording import rewards
from lightningbus.schemas import spans
from lightningbus.schemas.semconv import rewards as usable


def test_metrics_that_can_be_rewards_are_rewards_by_name() -> None:
    metrics = {"steps": 6, "ended": True, "reward": 1.0, "bad": math.nan, "far": 1e13, "x" * 65: 1.0, "a\n": 1.0}
    assert name_rewards({**metrics, "words": "six", "none": None}) == {"steps": 6.0, "ended": 1.0}
    assert len(name_rewards({f"m{number}": number for number in range(80)})) == MAX_REWARDS


def test_the_bounds_are_those_of_the_runner() -> None:
    assert (MAX_NAME, MAX_REWARDS, MAX_REWARD) == (rewards.MAX_NAME, spans.MAX_REWARDS, usable.MAX_REWARD)
    metrics = {f"m{number}": float(number) for number in range(80)}
    assert rewards.parse_rewards({"reward": 1, "rewards": name_rewards(metrics)}).by_name == name_rewards(metrics)
