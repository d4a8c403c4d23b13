"""Which steps `make gpu` takes, in which order, and for how long each may run. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

MIN_SECONDS = 60.0
"""Least time left, in seconds, in which a step is begun; halved with the limits of steps."""


@dataclass(frozen=True, slots=True)
class Step:
    """One process: it may fail, or be ended, without stopping the others."""

    name: str
    title: str
    measure: str
    """Its function in this package, as module:function."""
    limit_seconds: float
    arguments: Mapping[str, Any] = field(default_factory=dict)
    min_gpus: int = 0
    """Fewer GPUs, and it is left out."""


def _train(size: str, case: str) -> Step:
    return Step(
        f"training-{size}-{case}", "A training step", "training:measure", 300, {"size": size, "case": case}
    )  # fmt: skip


def _swap(policy: str) -> Step:
    return Step(
        f"swap-{policy}", "A swap with streams under way", "steps.weight_versions:measure_swap", 300,
        {"size": "small", "policy": policy},
    )  # fmt: skip


def _publish(name: str, title: str, *ways: str, min_gpus: int = 0) -> Step:
    return Step(name, title, "steps.weight_versions:measure", 600, {"size": "small", "ways": list(ways)}, min_gpus)


STEPS = (
    Step("machine", "The machine", "steps.machine:measure", 120),
    Step("generation-small", "Generation", "steps.generation:measure", 360, {"size": "small"}),
    Step("verl-small", "A training step", "steps.bare_verl:measure", 300, {"size": "small"}),
    _train("small", "defaults"),
    _train("small", "wide"),
    _train("small", "wide-kept"),
    Step("plain-small", "A training step", "steps.plain_training:measure", 240, {"size": "small"}),
    Step("agreement-small", "Engine against learner", "steps.agreement:measure", 360, {"size": "small"}),
    _swap("recompute"),
    _publish("weights-small", "Weight versions", "bus", "file", "file and gloo"),
    _swap("keep"),
    Step("loop-small", "Learner and engine on one GPU", "steps.loop:measure", 480, {"size": "small"}),
    Step("demo", "lightningbus demo --model tiny", "steps.demo:measure", 480),
    Step("pretrained", "SmolLM2-135M-Instruct on sums of Reasoning Gym", "steps.pretrained:measure", 600),
    Step("generation-large", "Generation", "steps.generation:measure", 480, {"size": "large"}),
    Step("verl-large", "A training step", "steps.bare_verl:measure", 300, {"size": "large"}),
    _train("large", "defaults"),
    Step("plain-large", "A training step", "steps.plain_training:measure", 300, {"size": "large"}),
    _train("large", "lora"),
    Step("agreement-large", "Engine against learner", "steps.agreement:measure", 480, {"size": "large"}),
    _train("large", "offloaded"),
    *(_train("small", case) for case in ("flash", "sdpa", "kept", "padded", "offloaded", "lora")),
    _publish("weights-nccl", "Weight versions by NCCL", "file and nccl", min_gpus=2),
)
"""The most important steps come first: a run that is cut off has those."""
NAMES = tuple(step.name for step in STEPS)


def choose_steps(names: Collection[str], completed: Collection[str]) -> list[Step]:
    """Those of ``names`` (empty: all), in order, that are not completed."""
    return [step for step in STEPS if (not names or step.name in names) and step.name not in completed]


def time_limit(step: Step, seconds_left: float, factor: float = 1.0) -> float | None:
    """Seconds that a step may take, ``factor`` times its limit at most; None: there is no time to begin it."""
    return None if seconds_left < MIN_SECONDS * min(factor, 1.0) else min(factor * step.limit_seconds, seconds_left)
