"""Number formats of a policy: that of its weights, and that of the learner's computation."""

from dataclasses import dataclass

from lightningbus.common.processor import has_bfloat16
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.schemas.weights.dtypes import (
    AUTO,
    Dtype,
    can_hold,
    choose_cpu_dtype,
    choose_engine_dtype,
    read_dtype,
)


@dataclass(frozen=True, slots=True)
class NumberFormats:
    """``weights``: of versions, and of the weights in the forward pass; ``computation``: of its activations."""

    weights: Dtype
    computation: Dtype
    stored: Dtype
    """Format of the model's files."""

    @property
    def is_exact(self) -> bool:
        """Whether the learner computes the model of the files in float32, without any rounding."""
        return self.computation == "float32" and can_hold(self.weights, self.stored)


def choose_formats(settings: LearnerSettings, device: str) -> NumberFormats:
    """Return the formats of a learner on a device, ``cpu`` or ``cuda``; raises ValueError as `resolve_formats`."""
    return resolve_formats(settings, read_dtype(settings.model_path), device == "cuda", has_bfloat16())


def resolve_formats(settings: LearnerSettings, stored: Dtype, on_gpu: bool, has_bfloat16: bool) -> NumberFormats:
    """Return the formats of a learner of a model whose files are in the format ``stored``. Pure.

    ``has_bfloat16``: the processor has instructions for bfloat16. Raises ValueError if the computation would round the
    weights further than versions are rounded: the trained policy would not be the one that samples.
    """
    weights = choose_engine_dtype(settings.weights.dtype, stored, on_gpu=on_gpu)
    computation = weights if on_gpu else choose_cpu_dtype(weights, has_bfloat16=has_bfloat16)
    if settings.engine.dtype != AUTO:
        computation = settings.engine.dtype
    if not can_hold(computation, weights) and settings.algorithm.rollout_correction.bypass_mode:
        raise ValueError(
            f"engine.dtype: {computation} rounds weights that engines serve in {weights}, so the trained policy would "
            f"not be the one that samples. Set it to {weights}, or weights.dtype and the nodes' dtype to {computation}"
        )
    return NumberFormats(weights, computation, stored)
