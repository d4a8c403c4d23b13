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

    text: str | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_PROMPT_CHARS,
        description="exact text of the prompt, as the agent sends it",
    )
    file: Path | None = Field(
        default=None, description="file that holds the exact text of the prompt, instead of `text`"
    )
    role: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9_.-]{1,64}$",
        description="role whose calls have the prompt as their whole system message; default: the prompt is its text "
        "in any system message, or the part between `<!-- prompt:NAME -->` and `<!-- /prompt -->`",
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.text is None) == (self.file is None):
            raise ValueError("give either text or file")
        return self


class ReflectionSettings(BaseModel):
    """The model that reads failures and proposes prompts."""

    model_config = ConfigDict(extra="forbid")

    url: str = Field(
        pattern=r"^https?://", description="URL of the reflecting model's OpenAI-compatible endpoint, including `/v1`"
    )
    model: str = Field(min_length=1, description="name of the reflecting model at its endpoint")
    api_key_env: str | None = Field(
        default=None, description="environment variable that holds the endpoint's key; default: no key"
    )
    max_chars: int = Field(
        default=40_000, ge=1000, description="most characters of examples in one request to the reflecting model"
    )
    timeout: float = Field(default=300.0, gt=0, description="seconds that an answer of the reflecting model may take")
    temperature: float | None = Field(
        default=None, ge=0, description="sampling temperature of the reflecting model; default: the endpoint's"
    )


class OptimizeSettings(BaseModel):
    """Prompt optimisation: prompts, tasks, and numbers of rollouts."""

    model_config = ConfigDict(extra="forbid")

    prompts: dict[PromptName, PromptSettings] = Field(
        min_length=1, max_length=64, description="prompts to improve, by name"
    )
    tasks: TaskSourceSetting = Field(description="tasks that prompts are tried on, in the form of `learner.tasks`")
    heldout: TaskSourceSetting = Field(
        description="held-out tasks that decide whether the best version is released; must not be in `tasks`"
    )
    budget: int = Field(ge=1, description="most rollouts of the whole optimisation, held-out ones included")
    every: int | None = Field(
        default=None,
        ge=1,
        description="weight versions between two rounds in `lightningbus train`, which also makes one before training; "
        "nodes keep a version until its round has ended; default: only `lightningbus optimize` makes a round",
    )
    round_budget: int | None = Field(
        default=None, ge=1, description="most rollouts of one round; default: all that `budget` has left"
    )
    samples: int = Field(default=1, ge=1, description="rollouts of each task of `tasks`")
    heldout_samples: int = Field(default=1, ge=1, description="rollouts of each held-out task")
    minibatch: int = Field(
        default=3, ge=1, description="number of tasks whose rollouts the reflecting model is shown at once"
    )
    max_iterations: int = Field(default=50, ge=1, description="most proposals of the reflecting model")
    max_drop: float = Field(
        default=0.0,
        ge=0,
        description="largest drop of the held-out reward with which the best version is still released",
    )
    max_prompt_chars: int = Field(
        default=20_000, ge=1, le=MAX_PROMPT_CHARS, description="longest prompt that is tried, in characters"
    )
    max_reward: float = Field(default=1.0, description="reward of a perfect answer, at which the search ends")
    agent: str = Field(
        default="default", description="name of the agent whose prompts are improved", pattern=r"^[A-Za-z0-9_-]{1,64}$"
    )
    model: str = Field(
        default="policy", description="name of the model that the agent calls", pattern=r"^[A-Za-z0-9_-]{1,64}$"
    )
    temperature: float | None = Field(
        default=None,
        ge=0,
        description="sampling temperature of every model call of the agent; default: the agent's own",
    )
    deadline: float = Field(default=120.0, gt=0, description="seconds that a rollout may take")
    seed: int = Field(default=0, description="seed of the order in which tasks are drawn")
    reflection: ReflectionSettings
