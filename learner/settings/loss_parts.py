"""Settings of the parts of a loss, and of what they learn from beside rewards."""

from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class LossWeights(BaseModel):
    """Weights of the parts of a training step's loss, each a mean over tokens of its own."""

    model_config = ConfigDict(extra="forbid")

    rl: float = Field(default=1.0, ge=0, description="weight of the policy loss, with its KL and entropy terms")
    ce: float = Field(default=1.0, ge=0, description="weight of the supervised loss on what `supervised` gives")
    kl: float = Field(default=1.0, ge=0, description="weight of the divergence from `teacher`")


class SupervisedSettings(BaseModel):
    """Answers that the model learns to give, beside rollouts or, with `groups_per_step: 0`, instead of them."""

    model_config = ConfigDict(extra="forbid")

    path: Path = Field(
        description="file of chats, .jsonl or .parquet with a column `messages`, or of calls' tokens, .parquet as "
        "`lightningbus rollouts export` writes it"
    )
    batch_size: int = Field(default=16, ge=1, description="chats, or rollouts, of each training step")


class PreferenceSettings(BaseModel):
    """Pairs of answers of which the model learns to prefer one, by direct preference optimization."""

    model_config = ConfigDict(extra="forbid")

    path: Path = Field(
        description="file of pairs, .jsonl or .parquet with `prompt` or `messages`, `chosen` and `rejected`, or of "
        "calls' tokens, .parquet as `lightningbus rollouts export` writes it: the best rollout of each task against "
        "the worst"
    )
    batch_size: int = Field(default=16, ge=1, description="pairs of each training step")
    beta: float = Field(
        default=0.1, gt=0, description="strength of the tie to the model at the start: the larger, the less it moves"
    )


class TeacherSettings(BaseModel):
    """On-policy distillation: a model scores the tokens of rollouts, and the trained one comes to agree with it."""

    model_config = ConfigDict(extra="forbid")

    url: str | None = Field(default=None, description="address of a vLLM server, such as http://10.0.0.5:8000")
    served_model: str | None = Field(
        default=None, description="name of the teacher at `url`, where that serves several models"
    )
    model: str | None = Field(
        default=None, description="name of the teacher among the models of the run's inference nodes, in place of `url`"
    )
    api_key_file: Path | None = Field(
        default=None, description="file with the server's API key; default for nodes of the run: their own key"
    )
    max_requests: int = Field(default=8, ge=1, description="requests to the teacher at once")
    timeout_seconds: float = Field(default=300.0, gt=0, description="seconds until a request is tried again")

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if (self.url is None) == (self.model is None):
            raise ValueError("name the teacher by `url`, or by `model` of a node of the run: one of them")
        if self.model is not None and self.served_model is not None:
            raise ValueError("served_model is for a teacher at `url`")
        return self
