"""Log-probabilities of the tokens that follow, from logits, some thousand tokens at a time.

verl's own, without flash-attention, loops over tokens one by one. torch's cross-entropy keeps a float32 copy of the
logits of all tokens until the backward pass. Here a chunk at a time is computed in float32, and once more backwards,
whether one token at a place is asked for or several. The entropy comes from the same sums, which are computed once for
both.
"""

import weakref
from typing import Any

import torch

CHUNK_TOKENS = 1024
_last: tuple[Any, int, Any] | None = None
"""Logits whose entropy was computed last, held weakly; their version in torch; `logsumexp` of each row."""


def entropy_from_logits(logits: Any) -> Any:
    """Compute ``float32[...]`` from ``[..., vocabulary]``: the entropy in nats, without a gradient.

    verl may compile this. A compiled loop over chunks is of one number of tokens, so the loop itself never is.
    """
    return _compute_entropy(logits)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _compute_entropy(logits: Any) -> Any:
    global _last
    flat = logits.detach().flatten(0, -2)
    entropy = torch.empty(len(flat), dtype=torch.float32, device=logits.device)
    sums = torch.empty_like(entropy)
    for part in _chunks(len(flat)):
        chunk = flat[part].float()
        top = chunk.amax(-1, keepdim=True)
        weights = (chunk - top).exp_()
        totals = weights.sum(-1)
        sums[part] = totals.log() + top.squeeze(-1)
        entropy[part] = sums[part] - weights.mul_(chunk).sum(-1) / totals
    _last = weakref.ref(logits), logits._version, sums
    return entropy.view(logits.shape[:-1])


def _take_sums(logits: Any) -> Any | None:
    """Return the sums of the last entropy if it was of these logits; only once."""
    global _last
    last, _last = _last, None
    return last[2] if last is not None and last[0]() is logits and last[1] == logits._version else None


def log_probs_from_logits(logits: Any, labels: Any) -> Any:
    """Compute ``float32`` of the labels' shape from ``[..., vocabulary]``: the log-softmax at the labels.

    ``labels`` are ``int64[...]``, one at each place, or ``int64[..., m]``, several. The passes over logits and their
    gradient are the same for several as for one.
    """
    sums, rows = _take_sums(logits), logits.flatten(0, -2)
    values = _LogProbs.apply(rows, labels.reshape(len(rows), -1), sums)  # type: ignore[no-untyped-call]
    return values.view(labels.shape)


class _LogProbs(torch.autograd.Function):
    """``log p = x_label - logsumexp(x)``, whose gradient is ``[x is label] - p``, for ``int64[n, m]`` labels."""

    @staticmethod
    def forward(ctx: Any, logits: Any, labels: Any, sums: Any) -> Any:
        if sums is None:
            sums = torch.empty(len(labels), dtype=torch.float32, device=logits.device)
            for part in _chunks(len(labels)):
                sums[part] = torch.logsumexp(logits[part].float(), -1)
        chosen = logits.gather(-1, labels).float()
        ctx.save_for_backward(logits, labels, sums)
        return chosen - sums[:, None]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        logits, labels, sums = ctx.saved_tensors
        (gradient,) = gradients
        out = torch.empty_like(logits)
        for part in _chunks(len(labels)):
            scale = gradient[part].float()
            chunk = (logits[part].float() - sums[part, None]).exp_().mul_(-scale.sum(-1, keepdim=True))
            chunk.scatter_add_(-1, labels[part], scale)
            out[part] = chunk.to(out.dtype)
        return out, None, None


def _chunks(count: int) -> list[slice]:
    return [slice(start, start + CHUNK_TOKENS) for start in range(0, count, CHUNK_TOKENS)]
