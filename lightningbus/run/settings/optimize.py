"""Settings of a prompt optimisation: the section ``optimize`` of a run file."""

from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from lightningbus.schemas.prompts import MAX_PROMPT_CHARS
from lightningbus.tasks.task_source import TaskSourceSetting

PromptName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


class PromptSettings(BaseModel):
    """One prompt of the agent, as the agent itself sends it."""

    model_config = ConfigDict(extra="forbid")

    text: str | None = Field(None, min_length=1, max_length=MAX_PROMPT_CHARS, description="its exact text")
    file: Path | None = Field(None, description="file that holds its exact text, instead of `text`")
    role: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9_.-]{1,64}$",
        description="the prompt is the whole system message of this role's calls; default: wherever the text is found, "
        "or what stands between `<!-- prompt:NAME -->` and `<!-- /prompt -->`",
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.text is None) == (self.file is None):
            raise ValueError("give either text or file")
        return self


class ReflectionSettings(BaseModel):
    """The model that reads failures and proposes prompts."""

    model_config = ConfigDict(extra="forbid")

    url: str = Field(pattern=r"^https?://", description="an OpenAI-compatible endpoint, up to and with `/v1`")
    model: str = Field(min_length=1, description="name of the model there")
    api_key_env: str | None = Field(None, description="variable that holds the endpoint's key; default: no key")
    max_chars: int = Field(40_000, ge=1000, description="characters of failures it is shown at once")
    timeout: float = Field(300.0, gt=0, description="seconds an answer may take")
    temperature: float | None = Field(None, ge=0, description="sampling temperature; default: the endpoint's")


class OptimizeSettings(BaseModel):
    """Prompt optimisation: prompts, tasks, and numbers of rollouts."""

    model_config = ConfigDict(extra="forbid")

    prompts: dict[PromptName, PromptSettings] = Field(min_length=1, max_length=64, description="prompts by name")
    tasks: TaskSourceSetting = Field(description="problems that prompts are tried on, as `learner.tasks` names them")
    heldout: TaskSourceSetting = Field(
        description="problems that decide whether the best version is released; none of `tasks`"
    )
    budget: int = Field(ge=1, description="most rollouts that are published, held-out ones included")
    every: int | None = Field(
        None,
        ge=1,
        description="`lightningbus train` improves them too: before training, then every so many weight versions; "
        "nodes keep the version until the round has ended; default: only `lightningbus optimize` does",
    )
    round_budget: int | None = Field(
        None, ge=1, description="most rollouts of one round; default: all that `budget` has left"
    )
    samples: int = Field(1, ge=1, description="rollouts of each problem of `tasks`")
    heldout_samples: int = Field(1, ge=1, description="rollouts of each held-out problem")
    minibatch: int = Field(3, ge=1, description="problems whose failures the reflecting model is shown at once")
    max_iterations: int = Field(50, ge=1, description="most proposals")
    max_drop: float = Field(
        0.0, ge=0, description="how much lower the held-out reward may be than before; above it nothing is released"
    )
    max_prompt_chars: int = Field(20_000, ge=1, le=MAX_PROMPT_CHARS, description="longest prompt that is tried")
    max_reward: float = Field(1.0, description="what a perfect answer gets")
    agent: str = Field("default", description="agent whose prompts they are", pattern=r"^[A-Za-z0-9_-]{1,64}$")
    model: str = Field("policy", description="model that the agent calls", pattern=r"^[A-Za-z0-9_-]{1,64}$")
    temperature: float | None = Field(None, ge=0, description="forced on every model call; default: the agent's own")
    deadline: float = Field(120.0, gt=0, description="seconds a rollout may take")
    seed: int = Field(0, description="of the order in which problems are drawn")
    reflection: ReflectionSettings
