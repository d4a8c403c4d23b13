"""Advice from a rank's memory plan: what to change where it does not fit, and what is faster and still fits. Pure."""

from collections.abc import Iterator, Set
from dataclasses import dataclass, replace

from lightningbus.learner.engine.memory_plan import ModelShape, TrainingShape, plan_memory

MAX_RANKS = 1024
MOST_TOKENS = 32768
"""Tokens at once beyond which a step is hardly faster, as measured for 0.5B parameters on an H200."""
LORA_RANK = 32


@dataclass(frozen=True, slots=True)
class Change:
    """A setting, and the training that comes of it."""

    setting: str
    how: TrainingShape
    peak: int


def advise(
    model: ModelShape, how: TrainingShape, capacity: int, engine_share: int, known: Set[str]
) -> tuple[list[Change], list[Change]]:
    """Find changes of which each is enough alone; and, where none is, changes that are enough one after another.

    Bytes. ``known`` are the available settings of ``engine``. Both are empty where nothing is enough.
    """

    def peak_of(changed: TrainingShape) -> int:
        return plan_memory(model, changed, engine_share).peak

    alone = [
        Change(setting, changed, peak_of(changed))
        for setting, changed in _changes(model, how, capacity, engine_share, known)
        if peak_of(changed) <= capacity
    ]
    if alone:
        return alone, []
    together: list[Change] = []
    current = how
    for name in NAMES:
        for setting, changed in _changes(model, current, capacity, engine_share, known):
            if setting.startswith(name) and peak_of(changed) < peak_of(current):
                current = changed
                together.append(Change(setting, changed, peak_of(changed)))
                break
        if together and together[-1].peak <= capacity:
            return [], together
    return [], []


TOKENS, RANKS, LORA = "actor.ppo_max_token_len_per_gpu", "ranks", "lora.lora_rank"
CHECKPOINTING, SYNC = "engine.enable_gradient_checkpointing", "engine.use_no_sync_for_gradient_accumulation"
OFFLOAD = "engine.offload_policy"
NAMES = (SYNC, CHECKPOINTING, TOKENS, RANKS, OFFLOAD, LORA)
"""Settings in the order of advice: the cheapest first."""


def _changes(
    model: ModelShape, how: TrainingShape, capacity: int, engine_share: int, known: Set[str]
) -> Iterator[tuple[str, TrainingShape]]:
    """Yield every setting that can still shrink, changed only as far as necessary."""

    def fits(changed: TrainingShape) -> bool:
        return plan_memory(model, changed, engine_share).peak <= capacity

    if how.defers_gradient_sync and _is_known(SYNC, known):
        yield f"{SYNC}: false", replace(how, defers_gradient_sync=False)
    if not how.checkpointing and _is_known(CHECKPOINTING, known):
        yield f"{CHECKPOINTING}: true", replace(how, checkpointing=True)
    least = max(64, -(-how.row_tokens // how.ulysses_ranks))
    if least < how.tokens:
        sizes = [tokens for tokens in (how.tokens >> shift for shift in range(1, 12)) if tokens > least] + [least]
        tokens = next((size for size in sizes if fits(replace(how, tokens=size))), least)
        yield f"{TOKENS}: {tokens}", replace(how, tokens=tokens)
    counts = [how.num_ranks << shift for shift in range(1, 11) if how.num_ranks << shift <= MAX_RANKS]
    spread = (replace(how, num_ranks=count, shard_ranks=0) for count in counts)
    if enough := next((changed for changed in spread if fits(changed)), None):
        yield f"{RANKS}: {enough.num_ranks}, all of which share one copy of the model", enough
    if not how.offload_policy and _is_known(OFFLOAD, known):
        yield f"{OFFLOAD}: true", replace(how, offload_policy=True)
    if not how.lora_rank and model.adapter_width:
        yield f"{LORA}: {LORA_RANK}", replace(how, lora_rank=LORA_RANK)


def _is_known(setting: str, known: Set[str]) -> bool:
    return setting.removeprefix("engine.") in known


def find_faster(model: ModelShape, how: TrainingShape, capacity: int, engine_share: int) -> list[Change]:
    """Find changes that make a step faster and still fit, each on top of those before; bytes.

    Small kernels leave a GPU idle, so more tokens at once come first; then what needs no second forward pass.
    """

    def peak_of(changed: TrainingShape) -> int:
        return plan_memory(model, changed, engine_share).peak

    sizes = [how.tokens << shift for shift in range(8, 0, -1) if how.tokens << shift <= MOST_TOKENS]
    larger = [replace(how, tokens=tokens) for tokens in sizes]
    largest = next((changed for changed in larger if peak_of(changed) <= capacity), how)
    kept = replace(largest, checkpointing=False)
    changes = [] if largest is how else [Change(f"{TOKENS}: {largest.tokens}", largest, peak_of(largest))]
    if how.checkpointing and peak_of(kept) <= capacity:
        changes.append(Change(f"{CHECKPOINTING}: false", kept, peak_of(kept)))
    return changes


def step_flops(
    model: ModelShape, how: TrainingShape, tokens: int, epochs: int = 1, log_prob_share: float = 1.0
) -> float:
    """Count the operations of a step over ``tokens`` tokens, all ranks together.

    Kaplan et al. (arXiv:2001.08361), section 2.1: 2 for each parameter and token forwards and 4 backwards; 2 more for
    the forward pass that checkpointing repeats. Before training comes a forward pass for log-probabilities, in a
    ``log_prob_share`` of the steps, and one of the reference. A critic costs as much again. Attention among tokens adds
    12 for each layer, feature and token seen (the same for PaLM, arXiv:2204.02311, appendix B), on average half a row.
    LoRA needs no gradients of frozen weights.
    """
    backward = 2 if how.lora_rank else 4
    per_pass = 2 + backward + (2 if how.checkpointing else 0)
    attended = 12 * model.layers * model.heads * model.head_dim * how.row_tokens / 2
    passes = 2 * log_prob_share + (2 if how.has_reference else 0) + epochs * per_pass
    whole = passes * model.num_active_params + attended * passes / 6
    critic = (2 + epochs * (6 + (2 if how.checkpointing else 0))) * model.num_active_params if how.has_critic else 0
    return tokens * (whole + critic)
