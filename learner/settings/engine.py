"""Settings of verl's engine: how a model lies in memory and is computed. verl's names are kept."""

from pydantic import BaseModel, ConfigDict, Field


class EngineSettings(BaseModel):
    """verl's ``fsdp_config``, and what its ``model`` says about the engine."""

    model_config = ConfigDict(extra="forbid")

    use_remove_padding: bool = Field(
        True,
        description="rows of a micro-batch one after another, without padding; false: side by side, padded to the "
        "longest, and so fewer of them",
    )
    use_no_sync_for_gradient_accumulation: bool = Field(
        False,
        description="add up gradients of micro-batches before ranks exchange them: less traffic, but each rank "
        "keeps all gradients, in float32",
    )
