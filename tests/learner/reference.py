"""A slow and plain reference of one training step's gradient: call by call, no rows, no batches, no verl."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from lightningbus.learner.rollouts.assembler import Rollout

Named = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Rule:
    """What is computed; the names are verl's."""

    loss: str = "vanilla"
    agg: str = "seq-mean-token-mean"
    bypass: bool = True
    low: float = 0.2
    high: float = 0.28
    c: float = 3.0
    kl: float = 0.0
    entropy: float = 0.0


def gradient(
    model_path: Path, rollouts: Sequence[Rollout], advantages: Mapping[tuple[str, int], float], rule: Rule
) -> tuple[float, Named]:
    """Loss and its gradient over the calls of rollouts, each rollout weighing the same."""
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    tokens = {rollout.id: sum(len(call.response_ids) // 4 for call in rollout.calls) for rollout in rollouts}
    total = torch.zeros(())
    for rollout in rollouts:
        weight = {
            "seq-mean-token-mean": 1 / (len(rollouts) * tokens[rollout.id]),
            "seq-mean-token-sum": 1 / len(rollouts),
            "token-mean": 1 / sum(tokens.values()),
        }[rule.agg]
        for call in rollout.calls:
            prompt, response = (list(memoryview(part).cast("I")) for part in (call.prompt_ids, call.response_ids))
            sampled = torch.tensor(memoryview(call.logprobs).cast("f").tolist())
            logits = model(input_ids=torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
            every = torch.log_softmax(logits, -1)
            now = every.gather(1, torch.tensor(response)[:, None])[:, 0]
            losses = _losses(now, sampled, advantages[rollout.id, call.index], rule)
            if rule.entropy:
                losses = losses + rule.entropy * (every.exp() * every).sum(-1)
            if rule.kl:  # the reference is the model itself: no divergence yet, and the gradient of k3 is 0 there
                losses = losses + rule.kl * (torch.exp(now.detach() - now) - (now.detach() - now) - 1)
            total = total + losses.sum() * weight
    total.backward()
    return float(total.detach()), {name: part.grad for name, part in model.named_parameters() if part.grad is not None}


def mean_entropy(model_path: Path, rollouts: Sequence[Rollout], agg: str) -> float:
    """Mean of -sum p log p in nats over the sampled tokens, each weighing as in the loss of ``agg``."""
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    by_rollout = []
    for rollout in rollouts:
        entropies: list[float] = []
        for call in rollout.calls:
            prompt, response = (list(memoryview(part).cast("I")) for part in (call.prompt_ids, call.response_ids))
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
            entropies += torch.distributions.Categorical(logits=logits).entropy().tolist()
        by_rollout.append(entropies)
    if agg == "seq-mean-token-mean":
        return sum(sum(entropies) / len(entropies) for entropies in by_rollout) / len(by_rollout)
    return sum(map(sum, by_rollout)) / sum(map(len, by_rollout))


def _losses(now: torch.Tensor, sampled: torch.Tensor, advantage: float, rule: Rule) -> torch.Tensor:
    old = sampled if rule.bypass else now.detach()
    ratio = torch.exp(now - old)
    if rule.loss == "vanilla":  # PPO, arXiv:1707.06347 eq. 7, with the dual clip of arXiv:1912.09729
        loss = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(1 - rule.low, 1 + rule.high))
        if advantage < 0:
            loss = torch.minimum(loss, torch.full_like(loss, -advantage * rule.c))
    elif rule.loss == "gspo":  # arXiv:2507.18071 eq. 9 to 14: the ratio of a sequence, here a call
        whole = torch.exp((now - old).mean().detach() + now - now.detach())
        loss = torch.maximum(-advantage * whole, -advantage * whole.clamp(1 - rule.low, 1 + rule.high))
    elif rule.loss == "cispo":  # arXiv:2506.13585 eq. 4
        loss = -advantage * ratio.clamp(1 - rule.low, 1 + rule.high).detach() * now
    elif rule.loss == "gpg":  # arXiv:2504.02546 eq. 8
        loss = -advantage * now
    elif rule.loss == "dppo_tv":  # arXiv:2602.04879: tokens whose probability has moved too far count no more
        moved = torch.exp(now) - torch.exp(old)
        counts = (moved <= rule.high) if advantage > 0 else (moved >= -rule.low)
        loss = -advantage * ratio.clamp(max=rule.c).detach() * now * counts.float().detach()
    elif rule.loss == "sapo":  # soft gates, arXiv:2511.20347, with verl's temperatures
        tau = 1.0 if advantage > 0 else 1.05
        loss = -advantage * torch.sigmoid(tau * (ratio - 1)) * 4 / tau
    else:  # geo_mean, arXiv:2507.20673 eq. 4: the geometric mean of a call's clipped ratios, for each of its tokens
        sign = 1.0 if advantage > 0 else -1.0
        moved = now - old
        clipped = sign * torch.minimum(sign * moved, sign * moved.clamp(-rule.low, rule.high))
        loss = -advantage * torch.exp(clipped.mean()).expand(len(now))
    if not rule.bypass:
        loss = loss * torch.exp(now.detach() - sampled).clamp(max=2.0)
    return loss
