"""Settings of evaluations: held-out tasks, and further suites of tasks beside them."""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from lightningbus.run.errors import UserError
from lightningbus.tasks.task_source import TaskSourceSetting


class HeldOutSettings(BaseModel):
    """Tasks that the model is never trained on, and when and how it answers them."""

    model_config = ConfigDict(extra="forbid")

    tasks: TaskSourceSetting | None = Field(
        default=None, description="held-out tasks, in the form of `learner.tasks`; none: no evaluation"
    )
    sampling: list[Literal["greedy", "sampled"]] = Field(
        default=["greedy", "sampled"],
        min_length=1,
        description="ways of sampling, each an evaluation of its own: greedy (temperature 0), sampled, or both",
    )
    samples: int = Field(default=2, ge=1, description="rollouts of each task in the evaluation `sampled`")
    every: int | None = Field(
        default=None,
        ge=1,
        description="weight versions between two evaluations during training; nodes keep a version until its "
        "evaluation has ended; none: evaluate only before and after training",
    )
    deadline: float = Field(
        default=120.0,
        gt=0,
        description="seconds without the end of a rollout, beyond learner.rollout_timeout_seconds, after which an "
        "evaluation fails",
    )
    agent: str = Field(default="default", description="name of the agent that runs the held-out tasks")
    pass_reward: float = Field(default=1.0, description="reward from which on an answer has passed, for pass@k")

    @property
    def task_source(self) -> TaskSourceSetting:
        """Source of the held-out tasks; raises `UserError` if there is none."""
        if self.tasks is None:
            raise UserError("eval.tasks: an evaluation needs held-out tasks")
        return self.tasks

    @property
    def labels(self) -> dict[str, str]:
        """Names of the evaluations, each with its way of sampling."""
        return {sampling: sampling for sampling in self.sampling}


class SuiteSettings(HeldOutSettings):
    """A suite: further held-out tasks with evaluations of their own, beside those of the same versions."""

    tasks: TaskSourceSetting = Field(description="held-out tasks, in the form of `learner.tasks`")
    name: str = Field(
        pattern=r"^[A-Za-z0-9_-]{1,56}$", description="name of the suite; its evaluations are NAME-greedy, NAME-sampled"
    )
    reward: str | None = Field(
        default=None,
        description="name of the reward that counts in this suite; none: the learner's, empty: the main one",
    )

    @property
    def labels(self) -> dict[str, str]:
        """Names of the evaluations, each with its way of sampling."""
        return {f"{self.name}-{sampling}": sampling for sampling in self.sampling}


class EvalSettings(HeldOutSettings):
    """Evaluation: tasks the model is never trained on, run before and after training and, on request, during it."""

    suites: list[SuiteSettings] = Field(default=[], description="further sets of held-out tasks, each with a name")
    best_by: str = Field(
        default="",
        description="evaluation that decides which version is the best, and counts for `patience`, as gsm8k-greedy; "
        "empty: the first one",
    )
    patience: int | None = Field(
        default=None,
        ge=1,
        description="evaluations in a row without a higher held-out reward after which training ends; wants `every`; "
        "none: train to the last step",
    )
    max_reward: float = Field(
        default=1.0, description="reward of a perfect policy, for comparison: `perfect_reward` of results.json"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = [suite.name for suite in self.suites]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"suites: two have the name {twice!r}")
        periods = {label: each.every for each in self.sets for label in each.labels}
        if self.best_by and self.best_by not in periods:
            raise ValueError(f"best_by: there is no evaluation {self.best_by!r}, but {', '.join(periods) or 'none'}")
        if self.patience is not None and periods.get(self.best_by or next(iter(periods), "")) is None:
            raise ValueError("patience counts evaluations during training: set `tasks` and `every` too")
        return self

    @property
    def sets(self) -> list[HeldOutSettings]:
        """The held-out tasks themselves, if there are any, then each suite."""
        return [*([self] if self.tasks is not None else []), *self.suites]

    @property
    def has_turns(self) -> bool:
        """Whether versions are evaluated during training."""
        return any(each.every is not None for each in self.sets)
