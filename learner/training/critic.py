"""PPO's critic: a value for every token, and generalised advantages from it, by verl's value engine and estimator."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from learner.batching.sequences import Row
from learner.engine.engines import make_engine
from learner.settings.learner import LearnerSettings
from learner.training.loss import value_loss
from learner.training.tensors import Floats, Segments, segments_of


@dataclass(frozen=True, slots=True)
class Judged:
    """Per row, as in `tensors`."""

    advantages: list[Floats]
    returns: list[Floats]


def judged(
    rows: Sequence[Row], rewards: Sequence[Floats], values: Sequence[Floats], settings: LearnerSettings
) -> Judged:
    """Generalised advantage estimation (arXiv:1506.02438) within each call, whitened over the tokens of the batch.

    ``rewards`` says for each token the credit of its call, which the call's last token is given as its reward: a call
    is an episode of its own, as LightningRL has it.
    """
    import torch
    from verl.trainer.ppo.core_algos import compute_gae_advantage_return

    segments = Segments(segments_of(rows))
    mask = torch.from_numpy(segments.mask).float()
    credit = segments.matrix(rewards)
    ends = torch.zeros_like(mask)
    ends[torch.arange(len(ends)), (mask.sum(-1) - 1).long()] = 1.0
    advantages, returns = compute_gae_advantage_return(
        token_level_rewards=credit * ends * _last_piece(rows)[:, None],
        values=segments.matrix(values),
        response_mask=mask,
        gamma=settings.algorithm.gamma,
        lam=settings.algorithm.lam,
    )
    return Judged(segments.rows(advantages), segments.rows(returns))


def _last_piece(rows: Sequence[Row]) -> Any:
    """``float32[S]``: 1 for the segment a call ends in; a call in windows has its reward once."""
    import torch

    whose = [(row.rollout, call) for row in rows for call in np.unique(row.calls[row.trained]).tolist()]
    final = {call: place for place, call in enumerate(whose)}
    return torch.tensor([float(final[call] == place) for place, call in enumerate(whose)])


class Critic:
    """The value model and its optimiser; every rank does the same at the same time."""

    def __init__(self, settings: LearnerSettings, device: str) -> None:
        self._settings = settings
        self.engine = make_engine(settings, device, settings.critic.optim, "value_model")

    def train(self, batch: Any) -> dict[str, Any]:
        """One optimiser step on a batch with ``values``, ``returns`` and ``weights``; verl's metrics by name."""
        with self.engine.train_mode():
            loss: Callable[..., Any] = partial(value_loss, self._settings)
            out = self.engine.train_batch(batch, loss)
        metrics: dict[str, Any] = out["metrics"]
        return {"critic/grad_norm": metrics.pop("grad_norm"), **metrics}
