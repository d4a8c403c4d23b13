"""The check that a learner computes its model as transformers publishes it; it also chooses how."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lightningbus.learner.engine.verl_checks import carries_state, uses_flash_attention
from lightningbus.learner.model_check.agreement import (
    MAX_DIFFERENCE,
    average_rows,
    find_log_prob_fault,
    find_tolerance,
    mean_difference,
)
from lightningbus.learner.model_check.computation_file import CheckedComputation, read_computation, write_computation
from lightningbus.learner.model_check.lengths import SHORT, find_lengths, read_lengths
from lightningbus.learner.model_check.memory import find_shortage
from lightningbus.learner.model_check.model_files import find_missing_tensors
from lightningbus.learner.model_check.probe import LENGTHS, make_long_probe, make_short_probe
from lightningbus.learner.model_check.reference import EAGER, SDPA, Computation, ReferenceModel
from lightningbus.learner.settings.engine import EngineSettings
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.learner.settings.model_config import read_text_config
from lightningbus.learner.trainer import Floats, ModelProbe
from lightningbus.learner.transitions.sequences import TrainSequence, scored_sequence
from lightningbus.learner.transitions.tokenizer import find_vocabulary_size
from lightningbus.schemas.text import name_some, shorten_line

log = logging.getLogger(__name__)

COMPUTATIONS = (
    Computation(SDPA, is_packed=True),
    Computation(SDPA, is_packed=False),
    Computation(EAGER, is_packed=False),
    Computation(EAGER, is_packed=True),
)
"""Computations by speed, the fastest first. Eager attention over packed rows takes the square of all their tokens."""


class ModelCheckError(ValueError):
    """A model that would be trained wrong; the message says what differs and which setting is right."""


@contextmanager
def as_model_check_error(model_path: Path, part: str = "verl") -> Iterator[None]:
    """Turn what a part raises at a model that it does not know into `ModelCheckError`, which names the model's kind."""
    import torch

    try:
        yield
    except (ModelCheckError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # a model's code may raise anything
        kind = read_text_config(model_path).get("model_type", "unknown")
        raise ModelCheckError(
            f"{part} cannot train models of the kind {kind!r} ({model_path}): {_describe(error)}. Take another model, "
            "or a release of its packages that knows this one"
        ) from error


@dataclass(frozen=True)
class ModelCheck:
    """A right computation of a model, and what shows that it is right."""

    initial_settings: LearnerSettings
    settings: LearnerSettings
    """The initial ones, with the attention and the packing that are right."""
    rows: Sequence[TrainSequence] = ()
    """Tokens that all have to score alike; empty: nothing is checked."""
    roundings: Sequence[float] = ()
    """Mean difference that bfloat16 makes to each row of the reference, in nats per token."""
    vocabulary_size: int = 0
    log_probs: Sequence[Floats] | None = None
    """The reference's, one ``float32[N]`` per row; None: this learner was checked at an earlier start."""

    def verify(self, log_probs: Sequence[Floats], *, is_float32: bool) -> None:
        """Keep the computation for the next start; raise `ModelCheckError` if the learner differs from the reference.

        ``log_probs``: the learner's, of the model that it starts from.
        """
        if self.log_probs is None:
            return
        bound = MAX_DIFFERENCE if is_float32 else find_tolerance(self.rounding, num_rounded=1)
        if fault := find_log_prob_fault(log_probs, self.log_probs, self.rows, bound):
            raise ModelCheckError(
                "this model would be trained wrong: beside transformers with eager attention, row by row, the "
                f"learner's log-probabilities {fault}. Try engine.attn_implementation: eager, or "
                "engine.use_remove_padding: false"
            )
        engine = self.settings.engine
        write_computation(
            self.initial_settings,
            CheckedComputation(
                engine.attn_implementation,
                engine.use_remove_padding is not False,
                bool(engine.share_prefixes),
                list(self.roundings),
                self.vocabulary_size,
            ),
        )

    @property
    def rounding(self) -> float:
        """Mean difference that bfloat16 makes to the reference, in nats per token."""
        return average_rows(self.roundings, self.rows)

    def make_probe(self, *, is_exact: bool) -> ModelProbe | None:
        """Return what engines have to agree with; None: nothing is checked.

        ``is_exact``: the log-probabilities to agree with are computed in float32, at the weights that engines hold.
        """
        return ModelProbe(self.rows, self.roundings, is_exact) if self.rows else None


def check_model(settings: LearnerSettings, device: str) -> ModelCheck:
    """Compute a model by the reference, and by the computations that the settings allow until one of them agrees.

    A learner that was checked at an earlier start reuses that result. Takes memory for the model in float32 on the CPU.
    Raises `ModelCheckError`.
    """
    if not settings.engine.check_model:
        return ModelCheck(settings, _with_computation(settings, device, None))
    path = settings.model_path
    _check_files(path)
    if known := read_computation(settings):
        computation = Computation(known.attention, known.is_packed)
        rows = _make_rows(settings, known.vocabulary_size)
        checked_settings = _with_computation(settings, device, computation, known.shares_prefixes)
        return ModelCheck(settings, checked_settings, rows, known.roundings, known.vocabulary_size)
    if shortage := find_shortage(path):
        log.warning("the model is not compared with transformers' own: %s", shortage)
        return ModelCheck(settings, _with_computation(settings, device, None))
    short = _ShortLengths(path, settings.seq_len)
    with as_model_check_error(path, "transformers"):
        reference = ReferenceModel(path)
        vocabulary_size = find_vocabulary_size(path) or reference.vocabulary_size
        rows = _make_rows(settings, vocabulary_size)
        short_rows, long_rows = rows[: len(LENGTHS)], rows[len(LENGTHS) :]
        log_probs = reference.log_probs(short_rows)
    chosen = _choose_computation(settings.engine, device, _Differences(reference, short_rows, log_probs), short)
    shares = chosen == COMPUTATIONS[0] and _shares_prefixes(settings.engine, reference, short_rows)
    with as_model_check_error(path, "transformers"):
        log_probs += reference.log_probs(long_rows)
        rounded = reference.rounded_log_probs(rows)
    roundings = [mean_difference([left], [right]) for left, right in zip(rounded, log_probs, strict=True)]
    checked_settings = _with_computation(settings, device, chosen, shares)
    return ModelCheck(settings, checked_settings, rows, roundings, vocabulary_size, log_probs)


def _make_rows(settings: LearnerSettings, vocabulary_size: int) -> list[TrainSequence]:
    """Make the rows of a check, the short ones first."""
    path, max_tokens = settings.model_path, settings.seq_len
    short = make_short_probe(path, vocabulary_size, max_tokens)
    return short + make_long_probe(path, vocabulary_size, max_tokens, read_lengths(path))


def _check_files(path: Path) -> None:
    with as_model_check_error(path, "transformers"):
        missing = find_missing_tensors(path)
    if missing:
        raise ModelCheckError(
            f"{path} lacks tensors that its config.json asks for: {name_some(missing)}. Fetch the model again, or "
            "correct its config.json"
        )


def _with_computation(
    settings: LearnerSettings, device: str, computation: Computation | None, shares_prefixes: bool = False
) -> LearnerSettings:
    engine = settings.engine
    if computation is not None:
        changes: dict[str, object] = {
            "attn_implementation": computation.attention,
            "use_remove_padding": computation.is_packed,
            "share_prefixes": shares_prefixes,
        }
    elif engine.use_remove_padding is None:
        changes = {"use_remove_padding": not carries_state(read_text_config(settings.model_path))}
    else:
        return settings
    return settings.model_copy(update={"engine": engine.model_copy(update=changes)})


class _Differences:
    """Mean differences of computations to the reference, measured on first use; infinite if the model refuses one."""

    def __init__(self, reference: ReferenceModel, rows: Sequence[TrainSequence], log_probs: Sequence[Floats]) -> None:
        self._reference, self._rows, self._log_probs = reference, rows, log_probs
        self._known: dict[Computation, float] = {}

    def __getitem__(self, computation: Computation) -> float:
        if computation not in self._known:
            try:
                log_probs = self._reference.compute(self._rows, computation)
                self._known[computation] = mean_difference(log_probs, self._log_probs)
            except Exception as error:  # gpt_oss refuses sdpa, for example
                log.info("%s: the model refuses it: %s", computation, _describe(error))
                self._known[computation] = float("inf")
        return self._known[computation]

    def find_right(self, computations: Sequence[Computation]) -> Iterator[Computation]:
        """Yield the computations that agree with the reference."""
        return (computation for computation in computations if self[computation] <= MAX_DIFFERENCE)


class _ShortLengths:
    """The computations that are right beyond the lengths of a configuration; all, if no row is that long.

    The model is computed with its lengths made short, since a probe does not reach the published ones.
    """

    def __init__(self, path: Path, seq_len: int) -> None:
        from transformers import AutoConfig

        self.right: Sequence[Computation] = COMPUTATIONS
        self.shortest = 0
        """Shortest length that no probe reaches and a row may exceed; 0: there is none."""
        try:
            config = AutoConfig.from_pretrained(path, local_files_only=True)
            self.shortest = next((length for length in find_lengths(config) if SHORT < length < seq_len), 0)
            if self.shortest:
                reference = ReferenceModel(path, is_short=True)
                rows = make_short_probe(path, find_vocabulary_size(path) or reference.vocabulary_size, seq_len)
                differences = _Differences(reference, rows, reference.log_probs(rows))
                self.right = list(differences.find_right(COMPUTATIONS))
        except Exception as error:  # a model's code may raise anything
            log.info("the model is not computed with short lengths: %s", _describe(error))
            self.right = ()


def _choose_computation(
    engine: EngineSettings, device: str, differences: _Differences, short: _ShortLengths
) -> Computation | None:
    if uses_flash_attention(engine, device):
        return None
    name, packed = engine.attn_implementation, engine.use_remove_padding
    allowed = [
        computation
        for computation in COMPUTATIONS
        if name in ("auto", computation.attention)
        and packed in (None, computation.is_packed)
        and (engine.ulysses_sequence_parallel_size == 1 or computation == COMPUTATIONS[0])
    ]
    candidates = [computation for computation in allowed if computation in short.right]
    if computation := next(differences.find_right(candidates), None):
        if computation != allowed[0]:
            log.warning(
                "%s computes this model wrong (%s): %s is used", allowed[0], differences[allowed[0]], computation
            )
        return computation
    if right := next(differences.find_right(allowed), None):
        raise ModelCheckError(
            f"this model would be trained wrong: {right} computes it as transformers does up to {short.shortest} "
            f"tokens, a length that its config.json names, and not beyond. Set seq_len: {short.shortest}"
        )
    differing = "; ".join(
        f"{computation}: {differences[computation]:.3g} nats per token off" for computation in allowed
    )
    right = next(differences.find_right(short.right), None)
    advice = f"set {right}" if right else "transformers computes rows of it together in no right way"
    raise ModelCheckError(f"this model would be trained wrong. {differing}. {advice}")


def _shares_prefixes(engine: EngineSettings, reference: ReferenceModel, rows: Sequence[TrainSequence]) -> bool:
    """Return whether to compute the common beginning of two rows once.

    Raises `ModelCheckError` where the settings ask for it and the model computes it wrong.
    """
    if engine.share_prefixes is False or engine.ulysses_sequence_parallel_size > 1:
        return False
    ids = max(rows, key=lambda row: len(row.token_ids)).token_ids.tolist()
    half, quarter = len(ids) // 2, len(ids) // 4
    first = scored_sequence("first", ids[:half])
    other = scored_sequence("other", ids[:quarter] + ids[half:])
    try:
        shared = reference.compute_shared(first, other, quarter)
        (whole,) = reference.log_probs([other])
        difference = mean_difference([shared[quarter:]], [whole[quarter:]])
    except Exception as error:  # a model's code may raise anything
        log.info("engine.share_prefixes: the model refuses it: %s", _describe(error))
        difference = float("inf")
    if difference <= MAX_DIFFERENCE:
        return True
    if engine.share_prefixes:
        raise ModelCheckError(
            "this model would be trained wrong: with engine.share_prefixes its log-probabilities are "
            f"{difference:.3g} nats per token off. Set engine.share_prefixes: false"
        )
    return False


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {shorten_line(str(error), 200)}"
