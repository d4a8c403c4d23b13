"""Advantages by verl's estimators: one row per rollout, before anything is dropped."""

from collections.abc import Sequence

import numpy as np

from learner.groups import SMALLEST_GROUP
from learner.settings import AlgorithmSettings


def advantages_of(rewards: Sequence[float | None], groups: Sequence[str], settings: AlgorithmSettings) -> list[float]:
    """Advantage of each rollout; ``None`` is a masked rollout and gets 0, as do groups of fewer than two others
    (verl would hand a lone raw reward through as its advantage).

    ``groups`` names each rollout's group. GRPO: (reward - mean of the group) / (its standard deviation + 1e-6),
    https://arxiv.org/abs/2402.03300.
    """
    import torch
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn

    sizes: dict[str, int] = {}
    for reward, group in zip(rewards, groups, strict=True):
        sizes[group] = sizes.get(group, 0) + (reward is not None)
    used = [
        place
        for place, (reward, group) in enumerate(zip(rewards, groups, strict=True))
        if reward is not None and sizes[group] >= SMALLEST_GROUP
    ]
    result = [0.0] * len(rewards)
    if not used:
        return result
    estimated, _ = get_adv_estimator_fn(settings.adv_estimator)(
        token_level_rewards=torch.tensor([[rewards[place]] for place in used], dtype=torch.float32),
        response_mask=torch.ones(len(used), 1),
        index=np.array([groups[place] for place in used], dtype=object),
        norm_adv_by_std_in_grpo=settings.norm_adv_by_std_in_grpo,
    )
    for place, value in zip(used, estimated[:, 0].tolist(), strict=True):
        result[place] = float(value)
    return result
