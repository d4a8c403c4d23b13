"""Advantage estimators: verl's by their own names, or a user's."""

import inspect
from collections.abc import Hashable, Sequence

import numpy as np

from lightningbus.learner.batching.advantages import GAE, Estimator, are_equal
from lightningbus.learner.engine import cpu_platform
from lightningbus.learner.settings.algorithm import AlgorithmSettings
from lightningbus.learner.settings.import_path import is_import_path
from lightningbus.learner.settings.own_function import OwnFunction

SUPPLIED_ARGS = {"token_level_rewards", "response_mask", "index", "config", "epsilon", "kwargs"}
BATCHWIDE = {"reinforce_plus_plus", "reinforce_plus_plus_baseline", "gdpo", "gpg"}
"""verl's estimators that scale by statistics of the whole batch."""
WEIGHS_LENGTHS = {"opo"}
"""verl's estimators whose baseline weighs rollouts by their length."""


def make_estimator(settings: AlgorithmSettings) -> Estimator:
    """Return the advantage estimator of the settings; raises ValueError if it is unknown or needs more inputs."""
    name = settings.adv_estimator
    if name == GAE:
        return Estimator(lambda scores, groups, num_tokens: [float(score) for score in scores])
    if is_import_path(name):
        return _make_own_estimator(name, settings)
    cpu_platform.select_platform()
    from verl.trainer.config.algorithm import AlgoConfig
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, get_adv_estimator_fn

    if name not in ADV_ESTIMATOR_REGISTRY:
        known = ", ".join(sorted(ADV_ESTIMATOR_REGISTRY))
        raise ValueError(f"adv_estimator: {name!r} is not known; known: {known}, or module:function")
    function = get_adv_estimator_fn(name)
    options = {"norm_adv_by_std_in_grpo": settings.norm_adv_by_std_in_grpo}
    taken = inspect.signature(function).parameters
    missing = [
        argument
        for argument, parameter in taken.items()
        if parameter.default is parameter.empty and argument not in SUPPLIED_ARGS and argument not in options
    ]
    if missing:
        needs = ", ".join(missing)
        raise ValueError(f"adv_estimator: {name!r} needs {needs}, which a rollout's reward does not give")
    arguments = {argument: value for argument, value in options.items() if argument in taken}
    config = AlgoConfig(
        adv_estimator=name,
        gamma=settings.gamma,
        lam=settings.lam,
        norm_adv_by_std_in_grpo=settings.norm_adv_by_std_in_grpo,
    )

    def estimate(scores: Sequence[float], groups: Sequence[Hashable], num_tokens: Sequence[int] | None) -> list[float]:
        import torch

        if len(scores) == 1 and name in BATCHWIDE:
            return [0.0]  # one score has no deviation, and verl refuses it
        lengths = torch.ones(len(scores), 1, dtype=torch.float64)
        if name in WEIGHS_LENGTHS:
            if num_tokens is None:
                raise ValueError(f"adv_estimator: {name!r} needs the number of tokens of each score; pass num_tokens")
            lengths = torch.tensor(num_tokens, dtype=torch.float64).clamp(min=1)[:, None]
        group_numbers = {group: number for number, group in enumerate(dict.fromkeys(groups))}
        advantages, _ = function(
            token_level_rewards=torch.tensor(scores, dtype=torch.float64)[:, None],  # float32 has no squares of 10²⁰
            response_mask=lengths,  # verl sums it for the length, and multiplies the advantage by it
            **({"index": np.array([group_numbers[group] for group in groups])} if "index" in taken else {}),
            **({"config": config} if "config" in taken else {}),
            **arguments,
        )
        compared = groups if "index" in taken else [None] * len(scores)
        is_equal = find_equal(scores, compared)
        values = (advantages / lengths)[:, 0].tolist()
        return [0.0 if is_equal[group] else value for group, value in zip(compared, values, strict=True)]

    return Estimator(estimate, is_batchwide=name in BATCHWIDE)


def find_equal(scores: Sequence[float], groups: Sequence[Hashable]) -> dict[Hashable, bool]:
    """Return, by group, whether it has several scores that are equal up to the errors of floating-point sums.

    These have no advantage. A division by their standard deviation would amplify the error.
    """
    members: dict[Hashable, list[float]] = {}
    for score, group in zip(scores, groups, strict=True):
        members.setdefault(group, []).append(score)
    return {group: len(values) > 1 and are_equal(values) for group, values in members.items()}


def _make_own_estimator(path: str, settings: AlgorithmSettings) -> Estimator:
    user_function = OwnFunction.load("algorithm.adv_estimator", path)

    def estimate(scores: Sequence[float], groups: Sequence[Hashable], num_tokens: Sequence[int] | None) -> list[float]:
        return user_function.read_numbers(user_function(scores, groups, num_tokens, settings), len(scores), "scores")

    return Estimator(estimate, is_batchwide=True)
