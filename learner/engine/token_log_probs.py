"""Log-probabilities of the tokens that follow, from logits, some thousand tokens at a time.

verl's own, without flash-attention, loops over tokens one by one. torch's cross-entropy keeps a float32 copy of the
logits of all tokens until the backward pass. Here a chunk at a time is computed in float32, and once more backwards.
"""

from typing import Any

import torch

CHUNK_TOKENS = 1024


def log_probs_from_logits(logits: Any, labels: Any) -> Any:
    """Compute ``float32[...]`` from ``[..., vocabulary]`` and ``int64[...]``: the log-softmax at the labels."""
    flat = _LogProbs.apply(logits.flatten(0, -2), labels.flatten())  # type: ignore[no-untyped-call]
    return flat.view(labels.shape)


class _LogProbs(torch.autograd.Function):
    """``log p = x_label - logsumexp(x)``, whose gradient is ``[x is label] - p``."""

    @staticmethod
    def forward(ctx: Any, logits: Any, labels: Any) -> Any:
        sums = torch.empty(len(labels), dtype=torch.float32, device=logits.device)
        chosen = torch.empty_like(sums)
        for part in _chunks(len(labels)):
            chunk = logits[part].float()
            sums[part] = torch.logsumexp(chunk, -1)
            chosen[part] = chunk.gather(-1, labels[part, None]).squeeze(-1)
        ctx.save_for_backward(logits, labels, sums)
        return chosen - sums

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        logits, labels, sums = ctx.saved_tensors
        (gradient,) = gradients
        out = torch.empty_like(logits)
        for part in _chunks(len(labels)):
            scale = -gradient[part, None].float()
            chunk = (logits[part].float() - sums[part, None]).exp_().mul_(scale)
            chunk.scatter_add_(-1, labels[part, None], -scale)
            out[part] = chunk.to(out.dtype)
        return out, None


def _chunks(count: int) -> list[slice]:
    return [slice(start, start + CHUNK_TOKENS) for start in range(0, count, CHUNK_TOKENS)]
