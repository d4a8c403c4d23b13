"""Advantages by verl's estimators, by their own names: one score per rollout in, its advantage out."""

import inspect
from collections.abc import Hashable, Sequence

import numpy as np

from learner.batching.credit import Estimate
from learner.engine import cpu_platform
from learner.settings.algorithm import AlgorithmSettings

GAE = "gae"
"""The estimator that needs a critic: scores are its rewards, and `critic.Critic` turns them into advantages."""
SUPPLIED_ARGS = {"token_level_rewards", "response_mask", "index", "config", "epsilon", "kwargs"}


def make_estimator(settings: AlgorithmSettings) -> Estimate:
    """verl's registered estimator as a function of scores and their groups; raises ValueError with a sentence."""
    if settings.adv_estimator == GAE:
        return lambda scores, groups: [float(score) for score in scores]
    cpu_platform.select_platform()
    from verl.trainer.config.algorithm import AlgoConfig
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, get_adv_estimator_fn

    if settings.adv_estimator not in ADV_ESTIMATOR_REGISTRY:
        known = ", ".join(sorted(ADV_ESTIMATOR_REGISTRY))
        raise ValueError(f"adv_estimator: {settings.adv_estimator!r} is not known; known: {known}")
    function = get_adv_estimator_fn(settings.adv_estimator)
    options = {"norm_adv_by_std_in_grpo": settings.norm_adv_by_std_in_grpo}
    taken = inspect.signature(function).parameters
    missing = [
        name
        for name, parameter in taken.items()
        if parameter.default is parameter.empty and name not in SUPPLIED_ARGS and name not in options
    ]
    if missing:
        needs = ", ".join(missing)
        raise ValueError(
            f"adv_estimator: {settings.adv_estimator!r} needs {needs}, which a rollout's reward does not give"
        )
    arguments = {name: value for name, value in options.items() if name in taken}
    config = AlgoConfig(
        adv_estimator=settings.adv_estimator,
        gamma=settings.gamma,
        lam=settings.lam,
        norm_adv_by_std_in_grpo=settings.norm_adv_by_std_in_grpo,
    )

    def estimate(scores: Sequence[float], groups: Sequence[Hashable]) -> list[float]:
        import torch

        if not scores:
            return []
        group_numbers = {group: number for number, group in enumerate(dict.fromkeys(groups))}
        advantages, _ = function(
            token_level_rewards=torch.tensor(scores, dtype=torch.float32)[:, None],
            response_mask=torch.ones(len(scores), 1),
            **({"index": np.array([group_numbers[group] for group in groups])} if "index" in taken else {}),
            **({"config": config} if "config" in taken else {}),
            **arguments,
        )
        return [float(value) for value in advantages[:, 0]]

    return estimate
