"""Settings of verl's engine: memory and computation of a model, by verl's names."""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

Precision = Literal["fp32", "bf16", "fp16"]


class MixedPrecisionSettings(BaseModel):
    """verl's ``mixed_precision``: what a model is computed in."""

    model_config = ConfigDict(extra="forbid")

    param_dtype: Precision = Field("bf16", description="number format of weights and activations in the computation")
    reduce_dtype: Precision = Field("fp32", description="number format of gradients while they are summed over ranks")
    buffer_dtype: Precision = Field("fp32", description="number format of the model's buffers")


class EngineSettings(BaseModel):
    """verl's ``fsdp_config``, and the engine's part of its ``model``."""

    model_config = ConfigDict(extra="forbid")

    strategy: str = Field("fsdp2", description="verl's engine; only fsdp2 is supported")
    fsdp_size: int = Field(
        -1, ge=-1, description="ranks that share one copy of the model (HSDP: several copies); -1: all of them"
    )
    reshard_after_forward: bool = Field(
        True, description="release gathered weights between forward and backward pass; false: faster, with more memory"
    )
    param_offload: bool = Field(False, description="keep unused weights in host memory; GPU only")
    optimizer_offload: bool = Field(False, description="keep the unused optimiser state in host memory; GPU only")
    offload_policy: bool = Field(
        False,
        description="always keep weights and optimiser state in host memory, and run the optimiser there (FSDP2's own "
        "way); GPU only",
    )
    ulysses_sequence_parallel_size: int = Field(
        1, ge=1, description="ranks that share each sequence; a divisor of the ranks and of the model's attention heads"
    )
    model_dtype: Literal["fp32", "bf16"] = Field(
        "fp32", description="number format in which the optimiser keeps weights; bf16 rounds small steps away"
    )
    mixed_precision: MixedPrecisionSettings | None = Field(
        None, description="number formats of the computation; none: bf16 on a GPU with gradients in fp32, else fp32"
    )
    attn_implementation: Literal["auto", "sdpa", "eager", "flash_attention_2", "flash_attention_3"] = Field(
        "auto",
        description="implementation of attention; auto: flash_attention_2 on a GPU where it is installed, else sdpa "
        "row by row, or eager for a model that sdpa computes wrong",
    )
    use_remove_padding: bool | None = Field(
        None,
        description="pack rows of a micro-batch one after another, without padding; false: side by side, padded to "
        "the longest, and so fewer of them; none: packed, unless the model computes packed rows wrong",
    )
    check_model: bool = Field(
        True,
        description="before the first step, compare the learner's log-probabilities with those of transformers' own "
        "model, and the first engine's with the learner's; takes the model in float32 in host memory for a moment",
    )
    use_no_sync_for_gradient_accumulation: bool = Field(
        False,
        description="add up gradients of micro-batches before ranks exchange them: less traffic, but each rank "
        "keeps all gradients, in float32",
    )
    enable_gradient_checkpointing: bool | None = Field(
        None, description="recompute activations in the backward pass; none: only on a GPU"
    )
    enable_activation_offload: bool = Field(
        False, description="keep activations in host memory until the backward pass; GPU only"
    )
    entropy_checkpointing: bool = Field(False, description="recompute an entropy bonus in the backward pass")
    use_torch_compile: bool | None = Field(None, description="compile the entropy; none: only on a GPU")

    def choose_precision(self, on_gpu: bool) -> MixedPrecisionSettings:
        """Return ``mixed_precision``, or its default on this device."""
        if self.mixed_precision is not None:
            return self.mixed_precision
        if on_gpu:
            return MixedPrecisionSettings(param_dtype="bf16", reduce_dtype="fp32", buffer_dtype="fp32")
        return MixedPrecisionSettings(param_dtype="fp32", reduce_dtype="fp32", buffer_dtype="fp32")

    def is_checkpointing(self, on_gpu: bool) -> bool:
        """Return ``enable_gradient_checkpointing``, or its default on this device."""
        return on_gpu if self.enable_gradient_checkpointing is None else self.enable_gradient_checkpointing

    def is_compiling(self, on_gpu: bool) -> bool:
        """Return ``use_torch_compile``, or its default on this device."""
        return on_gpu if self.use_torch_compile is None else self.use_torch_compile

    @field_validator("strategy")
    @classmethod
    def _engine(cls, value: str) -> str:
        if value != "fsdp2":
            raise ValueError(
                f"{value!r} cannot be used: the learner makes checkpoints, metrics and learning rates with fsdp2 alone "
                "(docs/scale.md)"
            )
        return value

    @model_validator(mode="after")
    def _parallel(self) -> Self:
        if self.ulysses_sequence_parallel_size > 1 and self.use_remove_padding is False:
            raise ValueError(
                "ulysses_sequence_parallel_size above 1 needs use_remove_padding: padded rows cannot be shared"
            )
        if self.fsdp_size == 0:
            raise ValueError("fsdp_size must be -1 or at least 1")
        return self

    @model_validator(mode="after")
    def _offload(self) -> Self:
        if self.offload_policy and (self.param_offload or self.optimizer_offload):
            raise ValueError(
                "offload_policy moves weights and optimiser itself: leave param_offload and optimizer_offload off"
            )
        return self
