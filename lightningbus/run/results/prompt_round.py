"""One round of prompt optimisation in a training job, as ``results.json`` has it."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class PromptRound(BaseModel):
    """One round under pinned weights."""

    model_config = ConfigDict(frozen=True)

    state: Literal["begun", "finished", "abandoned"] = Field(
        description="begun, finished, or abandoned: interrupted, and nodes cannot load its weight versions any more"
    )
    weight_versions: dict[str, int] = Field(description="weight version of each model that is pinned in the round")
    prompt_versions: dict[str, int] = Field(
        default={}, description="prompt versions that the round released or revoked, by prompt"
    )
    is_released: bool = Field(
        default=False, description="whether the versions were released, so that later training rollouts use them"
    )
    before: float | None = Field(
        default=None, description="mean reward on `optimize.heldout` with the prompts in use before"
    )
    after: float | None = Field(
        default=None,
        description="mean reward on `optimize.heldout` with the best prompts; none: no better ones were found",
    )
    rollouts: int = Field(default=0, description="rollouts that the round published")
    candidates: int = Field(default=0, description="number of texts evaluated on all tasks of `optimize.tasks`")
