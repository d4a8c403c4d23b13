"""Metrics of an environment as rewards by name. Pure."""

from typing import Any

MAX_NAME, MAX_REWARDS, MAX_REWARD = 64, 64, 1e12
"""Bounds of rewards by name: characters of a name, rewards of a rollout, and the absolute value of a reward."""


def name_rewards(metrics: dict[str, Any]) -> dict[str, float]:
    """Return the metrics that a runner takes as rewards by name; ``reward`` is the rollout's own, and left out."""
    named = {
        name: float(value)
        for name, value in metrics.items()
        if isinstance(value, (int, float)) and abs(value) <= MAX_REWARD and name != "reward"
    }
    usable = [name for name in named if 0 < len(name) <= MAX_NAME and name.isprintable()]
    return {name: named[name] for name in usable[:MAX_REWARDS]}
