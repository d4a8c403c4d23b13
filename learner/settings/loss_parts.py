"""Settings of the parts of a loss, and of what they learn from beside rewards."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, RootModel, model_validator

from lightningbus.common.parsed_models import parse_model

Direction = Literal["reverse", "forward"]
"""Side whose tokens a divergence of policy and teacher is the mean over: the policy's, or the teacher's."""


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

    name: str = Field(
        default="teacher",
        description="name of the teacher in metrics; each of a list needs one",
        pattern=r"^[A-Za-z0-9_-]{1,64}$",
    )
    labels: dict[str, str] = Field(
        default={}, description="labels of the tasks that it scores, as {task_set: math}; none: all tasks"
    )
    roles: list[str] = Field(
        default=[], description="roles whose calls it scores (the part after ':' in the model name); none: all roles"
    )
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
    hint: str | None = Field(
        default=None,
        min_length=1,
        description="message of the user that it reads before each answer, and the student does not; with it, the "
        "trained model may be its own teacher. None: it reads what the student reads",
    )
    top_k: int = Field(
        default=0,
        ge=0,
        description="likeliest tokens of the teacher at each place to learn from, beside the rest as one; 0: the "
        "sampled token alone. vLLM gives as many as its --max-logprobs (20), which nodes of the run get",
    )
    direction: Direction = Field(
        default="reverse",
        description="divergence with top_k. reverse: the policy gives up what the teacher finds unlikely; forward: it "
        "covers all that the teacher finds likely",
    )
    max_requests: int = Field(default=8, ge=1, description="requests to the teacher at once")
    timeout_seconds: float = Field(default=300.0, gt=0, description="seconds until a request is tried again")

    @property
    def has_condition(self) -> bool:
        """Whether it scores some calls alone."""
        return bool(self.labels or self.roles)

    def matches(self, labels: Mapping[str, str], role: str) -> bool:
        """Return whether it scores a role's calls in a task with these labels."""
        has_labels = all(labels.get(name) == value for name, value in self.labels.items())
        return has_labels and (not self.roles or role in self.roles)

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if (self.url is None) == (self.model is None):
            raise ValueError("name the teacher by `url`, or by `model` of a node of the run: one of them")
        if self.model is not None and self.served_model is not None:
            raise ValueError("served_model is for a teacher at `url`")
        if self.direction == "forward" and not self.top_k:
            raise ValueError("direction: forward needs top_k of at least 1: sampled tokens estimate the reverse alone")
        return self


class TeacherList(RootModel[list[TeacherSettings]]):
    """Several teachers: a model, because a setting that may be a list has no flags for the fields of one."""


def parse_teachers(value: Any) -> Any:
    """Convert a mapping to a teacher, and a list to several; raise ValueError naming what is wrong."""
    if not isinstance(value, list):
        if not isinstance(value, Mapping | TeacherSettings | TeacherList | None):
            raise ValueError(f"{value!r} is neither the fields of a teacher nor a list of teachers")
        return parse_model(value, TeacherSettings)
    teachers = [parse_model(each, TeacherSettings) for each in value]
    if not teachers or not all(isinstance(each, TeacherSettings) for each in teachers):
        raise ValueError("a list of teachers has the fields of at least one")
    names = [each.name for each in teachers]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"two teachers have the name {twice!r}: give each a `name` of its own")
    for number, each in enumerate(teachers[:-1]):
        if not each.has_condition:
            raise ValueError(
                f"teacher {each.name!r} scores every call, so {names[number + 1]!r} after it would score none: "
                "put it last"
            )
    if len({each.direction for each in teachers if each.top_k}) > 1:
        raise ValueError("two teachers have different directions: a step has one `direction`")
    return TeacherList(teachers)


TeacherSetting = Annotated[TeacherSettings | TeacherList | None, BeforeValidator(parse_teachers)]
"""The type of a setting: one teacher, several, of which the first that matches scores a call, or none."""
