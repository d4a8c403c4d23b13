"""The distribution that tokens are drawn from, as vLLM makes it of logits. Pure."""

from typing import TYPE_CHECKING

from lightningbus.auditor.samples import Sampling

if TYPE_CHECKING:
    from torch import Tensor


def log_probs(logits: "Tensor", sampling: Sampling) -> "Tensor":
    """Compute ``float32[T, V]``: log of the distribution after temperature, min_p, top_k and top_p, in this order.

    The order is vLLM's (`vllm/v1/sample/sampler.py`, version 0.31). ``logits``: ``[T, V]``.
    """
    import torch

    logits = logits.float()
    if sampling.is_greedy:  # drawn from nothing; vLLM reports the plain distribution
        return torch.log_softmax(logits, -1)
    logits = logits / sampling.temperature
    if sampling.min_p > 0:
        probabilities = torch.softmax(logits, -1)
        logits = logits.masked_fill(probabilities < sampling.min_p * probabilities.amax(-1, keepdim=True), -torch.inf)
    if 0 < sampling.top_k < logits.shape[-1]:
        smallest = logits.topk(sampling.top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < smallest, -torch.inf)
    if sampling.top_p < 1:
        ordered, order = logits.sort(dim=-1)
        is_excluded = torch.softmax(ordered, -1).cumsum(-1) <= 1 - sampling.top_p
        is_excluded[:, -1] = False
        logits = logits.masked_fill(is_excluded.scatter(-1, order, is_excluded), -torch.inf)
    return torch.log_softmax(logits, -1)


def sampled_ranks(log_probs: "Tensor", token_ids: "Tensor", uniforms: "Tensor") -> "Tensor":
    """Compute ``float32[T]``: probability of all likelier tokens, plus a ``uniforms`` share of the token's own.

    Uniform on (0, 1) for tokens that were drawn from the distribution: the randomised probability integral transform
    (Rosenblatt 1952, Brockwell 2007).
    """
    import torch

    chosen = log_probs.gather(-1, token_ids[:, None])
    likelier = torch.where(log_probs > chosen, log_probs.exp(), 0.0).sum(-1)
    return (likelier + uniforms * chosen[:, 0].exp()).clamp(0, 1)
