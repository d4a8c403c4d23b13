"""The plan of a run: what a seed says about tasks, settings and faults. Pure."""

import random
from dataclasses import dataclass, replace
from typing import Literal

ROLES = ("bus", "nats-server", "store", "inference-0", "engine-0", "runner-0", "runner-1", "learner")
LATE_SHARE = 0.8
"""Share of the rollouts before which the last fault comes."""
Action = Literal["kill", "stop", "repeat"]
ACTIONS: tuple[Action, ...] = ("kill", "kill", "kill", "stop", "repeat")
"""Kinds of faults, as often as each is drawn."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault, after so many rollouts have ended."""

    after: int
    action: Action
    """``repeat``: publish again what has been published, under the old and under new message ids."""
    target: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """One run of a small system."""

    seed: int
    num_tasks: int
    group_size: int
    groups_per_step: int
    num_steps: int
    max_staleness: int
    checkpoint_interval: int
    num_evaluations: int
    """Tasks that the publisher adds to those of the learner."""
    faults: tuple[Fault, ...] = ()

    @property
    def late(self) -> int:
        """Number of ended rollouts before which everything happens that the plan says."""
        return int(LATE_SHARE * (self.group_size * self.groups_per_step * self.num_steps + self.num_evaluations))

    @property
    def settings(self) -> str:
        """The settings in words."""
        return (
            f"{self.num_steps} steps of {self.groups_per_step} groups of {self.group_size}, "
            f"staleness {self.max_staleness}, a checkpoint every {self.checkpoint_interval}"
        )


def draw(seed: int, num_faults: int = 6) -> Plan:
    """Draw the plan of a seed."""
    rng = random.Random(seed)
    plan = Plan(
        seed=seed,
        num_tasks=rng.randint(3, 24),
        group_size=rng.randint(2, 5),
        groups_per_step=rng.randint(1, 4),
        num_steps=rng.randint(4, 7),
        max_staleness=rng.randint(0, 3),
        checkpoint_interval=rng.randint(1, 3),
        num_evaluations=rng.randint(8, 40),
    )
    faults = sorted((_draw_fault(rng, plan.late) for _ in range(num_faults)), key=lambda fault: fault.after)
    return replace(plan, faults=tuple(faults))


def _draw_fault(rng: random.Random, late: int) -> Fault:
    action = rng.choice(ACTIONS)
    after, target, seconds = rng.randrange(late), rng.choice(ROLES), rng.uniform(0.5, 8.0)
    return Fault(after, action, "" if action == "repeat" else target, seconds if action == "stop" else 0.0)
