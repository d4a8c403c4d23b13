"""A user's own policy loss on one micro-batch: checked before its gradient reaches the model."""

from typing import Any

from lightningbus.learner.settings.algorithm import ActorSettings
from lightningbus.learner.settings.own_function import OwnFunction, describe

LOSS_SETTING = "actor.policy_loss"


def compute_own_loss(
    user_function: OwnFunction,
    log_probs: Any,
    old: Any,
    advantages: Any,
    mask: Any,
    weights: Any,
    settings: ActorSettings,
) -> Any:
    """Sum a user's losses over tokens, each with its weight; all tensors are ``[S, T]``.

    The function works on a copy of ``log_probs``, and its gradient is then passed on to the model, so that an error in
    the gradient is known to come from the function.

    Raises `OwnFunctionError` for a loss that cannot be trained on, before anything has changed.
    """
    import torch

    leaf = log_probs.detach().requires_grad_()
    with torch.enable_grad():
        losses = user_function(leaf.clone(), old, advantages, mask, settings)
        _check_shape(user_function, losses, log_probs)
        with user_function.explain_errors():
            loss = (torch.where(mask, losses, 0.0) * weights).sum()
            gradient = torch.autograd.grad(loss, leaf, allow_unused=True)[0] if losses.requires_grad else None
    if gradient is None:
        raise user_function.refuse_result(
            "returned a loss without a gradient: compute it from log_prob, not from a detached copy"
        )
    gradient = torch.where(mask, gradient, 0.0)
    _check_finite(user_function, losses, gradient, mask, (log_probs, old, advantages))
    return loss.detach() + ((log_probs - log_probs.detach()) * gradient).sum()


def _check_shape(user_function: OwnFunction, losses: Any, log_probs: Any) -> None:
    import torch

    wanted = tuple(log_probs.shape)
    if not isinstance(losses, torch.Tensor):
        raise user_function.refuse_result(f"returned {describe(losses)}, not a tensor of {wanted}: a loss per token")
    if losses.shape != log_probs.shape:
        raise user_function.refuse_result(
            f"returned a tensor of {tuple(losses.shape)}, not of {wanted}: a loss per token"
        )


def _check_finite(user_function: OwnFunction, losses: Any, gradient: Any, mask: Any, inputs: tuple[Any, ...]) -> None:
    """Raise `OwnFunctionError` if loss or gradient is not finite; do nothing if the inputs are not finite already."""
    import torch

    is_bad = ~torch.isfinite(losses) & mask
    if not bool((is_bad.any() | ~torch.isfinite(gradient).all()).item()):
        return
    if not all(bool(torch.isfinite(values[mask]).all()) for values in inputs):
        return
    count, total = int(is_bad.sum()), int(mask.sum())
    if count == 0:
        raise user_function.refuse_result(
            "returned a loss whose gradient is not finite, as that of a root or logarithm of 0 is"
        )
    kind = "NaN" if bool(torch.isnan(losses[is_bad]).any()) else "an infinite loss"
    raise user_function.refuse_result(
        f"returned {kind} for {count} of {total} tokens: a loss is a finite number per token"
    )
