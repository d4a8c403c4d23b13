"""The same rows by transformers alone: float32 weights, bfloat16 autocast, checkpointing, padded micro-batches."""

from collections.abc import Sequence
from typing import Any

from benchmarks.gpu.context import Context
from benchmarks.gpu.sizes import Size
from benchmarks.gpu.training import SEEDS, count_tokens, make_sequences, report_step
from benchmarks.learner.contenders import split_by_length
from lightningbus.learner.transitions.sequences import TrainSequence

LEARNING_RATE, CLIP_GRAD = 1e-6, 1.0


def measure(context: Context, size: Size) -> None:
    """Tokens a second and peak memory of a step that is written by hand."""
    import torch
    from transformers import AutoModelForCausalLM

    scale, device = context.scale, "cuda" if torch.cuda.is_available() else "cpu"
    rows = [make_sequences(scale, scale.shapes[size].fields["vocab_size"], seed) for seed in SEEDS]
    model: Any = AutoModelForCausalLM.from_pretrained(
        context.model(size), dtype=torch.float32, attn_implementation="sdpa"
    )
    model = model.to(device).train()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.config.use_cache = False
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=device == "cuda")

    def step(number: int) -> str:
        num_trained = sum(row.num_tokens for row in rows[number])
        for place, batch in enumerate(split_by_length(rows[number], scale.max_tokens)):
            sign = 1.0 if place % 2 else -1.0  # of the advantages
            (-sign * _sum_log_probs(model, batch, device) / num_trained).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_GRAD)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return ""

    counts = [count_tokens(each) for each in rows]
    report_step(context, f"{context.title(size)}, transformers alone, padded rows, sdpa", step, counts)


def _sum_log_probs(model: Any, rows: Sequence[TrainSequence], device: str) -> Any:
    """The sum of the log-probabilities of all trained tokens of a padded micro-batch."""
    import torch

    longest = max(len(row.token_ids) for row in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    mask, trained = torch.zeros_like(ids), torch.zeros_like(ids, dtype=torch.bool)
    for place, row in enumerate(rows):
        length = len(row.token_ids)
        ids[place, :length] = torch.from_numpy(row.token_ids.astype("int64"))
        mask[place, :length] = 1
        trained[place, :length] = torch.from_numpy(row.trained)
    ids, mask, trained = ids.to(device), mask.to(device), trained.to(device)[:, 1:]
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1]
    log_probs = torch.log_softmax(logits[trained].float(), -1)
    return log_probs.gather(-1, ids[:, 1:][trained][:, None]).sum()
