"""One round of prompt optimisation in a training job, as ``results.json`` has it."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class PromptRound(BaseModel):
    """One round under pinned weights."""

    model_config = ConfigDict(frozen=True)

    state: Literal["begun", "finished", "abandoned"] = Field(
        description="begun, finished, or abandoned: it was interrupted, and nodes could not load its versions any more"
    )
    weight_versions: dict[str, int] = Field(description="weight version of each model, pinned in the round")
    prompt_versions: dict[str, int] = Field({}, description="versions that it released, or revoked, by prompt")
    is_released: bool = Field(False, description="training rollouts have these versions since then")
    before: float | None = Field(None, description="reward on `optimize.heldout` of the prompts until then")
    after: float | None = Field(None, description="of the best that was found; none: nothing better was found")
    rollouts: int = Field(0, description="rollouts of the round")
    candidates: int = Field(0, description="texts that were evaluated on all problems of `optimize.tasks`")
