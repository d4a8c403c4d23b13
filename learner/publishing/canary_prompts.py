"""Canary prompts: what every version is tried on, with the learner's own log-probabilities."""

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lightningbus.learner.model_check.agreement import average_rows, find_engine_tolerance, find_tolerance
from lightningbus.learner.settings.weights import CanarySettings
from lightningbus.learner.trainer import Floats, ModelProbe, Trainer
from lightningbus.learner.transitions.sequences import TrainSequence, scored_sequence
from lightningbus.schemas.weights.events import CanaryPrompt, CanarySpec

MAX_PROMPTS = 32
MAX_PROMPT_TOKENS = 256
"""Tokens used of a prompt: together at most 64 KiB in each manifest."""

NUM_LATER_ROWS = 7
"""Rows of a model's probe that show whether an engine still agrees: all short ones, and a long one."""


class CanaryPrompts:
    """The prompts of a file, as tokens of a model."""

    def __init__(self, settings: CanarySettings, model_path: Path, max_tokens: int) -> None:
        """Read the prompts, ``max_tokens`` of each; raise ValueError naming an invalid line."""
        self._settings = settings
        prompts = read_prompts(settings.prompts, model_path)
        self._prompts = [scored_sequence(f"canary-{number}", ids[:max_tokens]) for number, ids in enumerate(prompts)]

    def build_spec(self, trainer: Trainer) -> CanarySpec:
        """Compute the canary test of the trainer's current weights; blocks for a forward pass."""
        settings = self._settings
        return CanarySpec(
            prompts=_to_prompts(self._prompts, trainer.log_probs(self._prompts)),
            max_tokens=settings.max_tokens,
            max_kl=settings.max_kl,
            min_entropy=settings.min_entropy,
            max_entropy=settings.max_entropy,
            max_length_ratio=settings.max_length_ratio,
        )


def build_first_engine_check(trainer: Trainer, probe: ModelProbe) -> CanarySpec:
    """Compute what the first engine has to agree with at the first version; blocks for a forward pass."""
    return to_engine_check(probe, trainer.log_probs(probe.rows))


def build_engine_check(trainer: Trainer, probe: ModelProbe) -> CanarySpec:
    """Compute what an engine has to agree with at a later version, on a part of the rows; blocks for a forward pass."""
    return build_first_engine_check(
        trainer, replace(probe, rows=probe.rows[:NUM_LATER_ROWS], roundings=probe.roundings[:NUM_LATER_ROWS])
    )


def to_engine_check(probe: ModelProbe, log_probs: Sequence[Floats]) -> CanarySpec:
    """Build the trial of an engine that has to compute ``log_probs``, one ``float32[N]`` per row of a probe."""
    unbounded = sys.float_info.max
    rounding = average_rows(probe.roundings, probe.rows)
    return CanarySpec(
        prompts=_to_prompts(probe.rows, log_probs),
        max_tokens=1,
        max_kl=unbounded,
        min_entropy=0.0,
        max_entropy=unbounded,
        max_length_ratio=unbounded,
        max_difference=find_tolerance(rounding, num_rounded=1 if probe.is_exact else 2),
        max_float32_difference=find_engine_tolerance(rounding) if probe.is_exact else None,
    )


def _to_prompts(rows: Sequence[TrainSequence], log_probs: Sequence[Floats]) -> tuple[CanaryPrompt, ...]:
    return tuple(
        CanaryPrompt(ids=row.token_ids.astype("<u4").tobytes(), logprobs=values[1:].astype("<f4").tobytes())
        for row, values in zip(rows, log_probs, strict=True)
    )


def read_prompts(file: Path, model_path: Path) -> list[list[int]]:
    """Tokenize each line: a string, or a chat as a list of messages, which the model's template renders.

    Raises ValueError.
    """
    from transformers import AutoTokenizer

    try:
        lines = [line for line in file.read_text("utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"weights.canary.prompts: {file} cannot be read: {error}") from error
    if not 0 < len(lines) <= MAX_PROMPTS:
        raise ValueError(f"weights.canary.prompts: {file} has {len(lines)} prompts, not 1 to {MAX_PROMPTS}")
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    prompts = []
    for number, line in enumerate(lines, 1):
        try:
            messages = json.loads(line)
            if isinstance(messages, str):
                ids = tokenizer(messages)["input_ids"]
            else:
                tokenized: Any = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)
                ids = tokenized["input_ids"]
        except Exception as error:  # a template may raise anything
            raise ValueError(
                f"weights.canary.prompts: {file}, line {number} is neither a JSON string nor a list of messages that "
                f"the model's template renders: {error}"
            ) from error
        if len(ids) < 2:
            raise ValueError(f"weights.canary.prompts: {file}, line {number} has fewer than two tokens")
        prompts.append([int(token) for token in ids[:MAX_PROMPT_TOKENS]])
    return prompts
