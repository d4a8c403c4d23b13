"""Settings of verl's engine: memory and computation of a model, by verl's names."""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from lightningbus.schemas.weights.dtypes import AUTO, Dtype


class EngineSettings(BaseModel):
    """verl's ``fsdp_config``, and the engine's part of its ``model``."""

    model_config = ConfigDict(extra="forbid")

    fsdp_size: int = Field(
        default=-1, ge=-1, description="ranks that share one copy of the model (HSDP: several copies); -1: all of them"
    )
    param_offload: bool = Field(default=False, description="keep unused weights in host memory; GPU only")
    optimizer_offload: bool = Field(
        default=False, description="keep the unused optimiser state in host memory; GPU only"
    )
    offload_policy: bool = Field(
        default=False,
        description="always keep weights and optimiser state in host memory, and run the optimiser there (FSDP2's own "
        "way); GPU only",
    )
    ulysses_sequence_parallel_size: int = Field(
        default=1,
        ge=1,
        description="ranks that share each sequence; a divisor of the ranks and of the model's attention heads",
    )
    model_dtype: Literal["float32", "bfloat16"] = Field(
        default="float32",
        description="number format in which the optimiser keeps weights; bfloat16 rounds small steps away",
    )
    dtype: Dtype | Literal["auto"] = Field(
        default=AUTO,
        description="number format of the learner's computation. Weights are rounded to weights.dtype first, whatever "
        "it is. auto: weights.dtype, or float32 on a processor that has no instructions for weights.dtype",
    )
    attn_implementation: Literal["auto", "sdpa", "eager", "flash_attention_2", "flash_attention_3"] = Field(
        default="auto",
        description="implementation of attention; auto: flash_attention_2 on a GPU where it is installed, else sdpa "
        "row by row, or eager for a model that sdpa computes wrong",
    )
    use_remove_padding: bool | None = Field(
        default=None,
        description="pack rows of a micro-batch one after another, without padding; false: side by side, padded to "
        "the longest, and so fewer of them; none: packed, unless the model computes packed rows wrong",
    )
    share_prefixes: bool | None = Field(
        default=None,
        description="compute the prompt that rollouts of a group have in common once; needs packed rows, sdpa; none: "
        "where check_model finds that the model computes it right",
    )
    check_model: bool = Field(
        default=True,
        description="before the first step, compare the learner's log-probabilities with those of transformers' own "
        "model, and the first engine's with the learner's; takes the model in float32 in host memory for a moment",
    )
    use_no_sync_for_gradient_accumulation: bool = Field(
        default=False,
        description="add up gradients of micro-batches before ranks exchange them: less traffic, but each rank "
        "keeps all gradients, in float32",
    )
    enable_gradient_checkpointing: bool | None = Field(
        default=None, description="recompute activations in the backward pass; none: only on a GPU"
    )
    enable_activation_offload: bool = Field(
        default=False, description="keep activations in host memory until the backward pass; GPU only"
    )

    def is_checkpointing(self, on_gpu: bool) -> bool:
        """Return ``enable_gradient_checkpointing``, or its default on this device."""
        return on_gpu if self.enable_gradient_checkpointing is None else self.enable_gradient_checkpointing

    @model_validator(mode="after")
    def _parallel(self) -> Self:
        if self.ulysses_sequence_parallel_size > 1 and self.use_remove_padding is False:
            raise ValueError(
                "ulysses_sequence_parallel_size above 1 needs use_remove_padding: padded rows cannot be shared"
            )
        if self.share_prefixes and (self.ulysses_sequence_parallel_size > 1 or self.use_remove_padding is False):
            raise ValueError("share_prefixes needs packed rows that no ranks share: leave it out")
        if self.share_prefixes and self.attn_implementation not in ("auto", "sdpa"):
            raise ValueError("share_prefixes needs attn_implementation sdpa")
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
