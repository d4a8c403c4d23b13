"""PPO's critic: a value for every token, and generalised advantages from it, by verl's value engine and estimator."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from lightningbus.learner.engine.engines import make_engine
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.learner.trainer import Floats
from lightningbus.learner.training.loss import name_grad_norm, value_loss
from lightningbus.learner.training.tensors import Segments


@dataclass(frozen=True, slots=True)
class ValueTargets:
    """Advantages and returns, one ``float32[N]`` per sequence."""

    advantages: list[Floats]
    returns: list[Floats]


def compute_gae(
    segments: Segments,
    advantages: Sequence[Floats],
    values: Sequence[Floats],
    settings: LearnerSettings,
) -> ValueTargets:
    """Compute generalised advantages (arXiv:1506.02438) within each call, whitened over the tokens of the batch.

    A call is an episode of its own, as in LightningRL, even if it is split into windows: its last token gets the call's
    advantage as its reward. ``advantages`` and ``values`` are one ``float32[N]`` per sequence.
    """
    import torch
    from verl.trainer.ppo.core_algos import compute_gae_advantage_return

    mask = torch.from_numpy(segments.mask).float()
    rewards = segments.to_matrix(advantages)
    ends = torch.zeros_like(mask)
    ends[torch.arange(len(ends)), (mask.sum(-1) - 1).long()] = 1.0
    whitened, returns = compute_gae_advantage_return(
        token_level_rewards=rewards * ends,
        values=segments.to_matrix(values),
        response_mask=mask,
        gamma=settings.algorithm.gamma,
        lam=settings.algorithm.lam,
    )
    return ValueTargets(segments.from_matrix(whitened), segments.from_matrix(returns))


class Critic:
    """The value model and its optimiser; every rank makes the same calls at the same time."""

    def __init__(self, settings: LearnerSettings, device: str) -> None:
        self._settings = settings
        self.engine = make_engine(settings, device, settings.critic.optim, "value_model")

    def train(self, batch: Any) -> dict[str, Any]:
        """Make one optimiser step; ``batch`` has ``values``, ``returns`` and ``weights``. Return verl's metrics by
        name.
        """
        with self.engine.train_mode():
            loss: Callable[..., Any] = partial(value_loss, self._settings)
            out = self.engine.train_batch(batch, loss)
        return name_grad_norm(out["metrics"], "critic")
