"""The run file: a whole run in one YAML file, as `lightningbus up -c run.yaml` reads it."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from lightningbus.auditor.settings import AuditorSettings
from lightningbus.bus.streams.sizes import StreamSizes
from lightningbus.common.unknown_settings import describe_unknown
from lightningbus.graders.settings import GraderSettings
from lightningbus.inference.settings import InferenceSettings
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.run.errors import UserError
from lightningbus.run.settings.budget import BudgetSettings
from lightningbus.run.settings.evaluation import EvalSettings
from lightningbus.run.settings.optimize import OptimizeSettings
from lightningbus.run.settings.sources import find_source, merge, read_environment, warn_about_variables
from lightningbus.runners.settings import RunnerSettings
from lightningbus.schemas.ids import LATEST
from lightningbus.schemas.subjects import DEFAULT_POLICY
from lightningbus.store.settings import StoreSettings
from lightningbus.trackers.settings import TrackerSettings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydantic_core import ErrorDetails

PATTERN_ERRORS = {
    r"^[A-Za-z0-9_-]{1,64}$": "it is no name: letters, digits, _ and -, at most 64",
    r"^[A-Za-z0-9_-]{1,56}$": "it is no name of a suite: letters, digits, _ and -, at most 56",
    r"^[A-Za-z0-9_.-]{1,64}$": "it is no name: letters, digits, _, . and -, at most 64",
    r"^[A-Za-z_][A-Za-z0-9_]{0,63}$": "it is no name: letters, digits and _, at most 64, and no digit first",
    r"^[A-Za-z_][A-Za-z0-9_]*$": "it is no name: letters, digits and _, and no digit first",
    r"^[A-Za-z0-9.-]{1,253}$": "it is no host: a name of letters, digits, . and -, or an IPv4 address",
    r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$": "it is no name of Kubernetes: small letters, digits and -, at most 63",
    r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$": "it is not a Kubernetes name: small letters, digits, - and ., up to 253",
    r"^[\w.]+:[\w.]+$": "it is not of the form module:function",
    r"^(\S+:)?\d{1,5}$": "it is neither a port nor of the form address:port",
    r"^https?://": "it is not of the form http://host:port or https://host:port",
    r"^https?://.+": "it is not of the form http://host:port or https://host:port, such as ClickHouse's HTTP port 8123",
}
"""Explanation of each pattern that settings must match."""
M = TypeVar("M", bound=BaseModel)


class BusSettings(BaseModel):
    """The broker: an embedded nats-server, or one that is already there."""

    model_config = ConfigDict(extra="forbid")

    url: str | None = Field(default=None, description="URL of a NATS server to use instead of the embedded one")
    host: str = Field(default="127.0.0.1", description="address the embedded server listens on")
    port: int = Field(default=4222, ge=0, le=65535, description="port of the embedded server; 0 takes a free one")
    sync_interval: str = Field(
        default="2m",
        description="longest time until a write is on disk, as 2m; always: every write survives a power loss",
    )
    credentials: Path | None = Field(
        default=None,
        description="directory written by `lightningbus bus create-users`, with the server's users, TLS and each "
        "role's keys; default: on loopback, users are created in the run's directory",
    )
    insecure: bool = Field(
        default=False,
        description="run without users, also on addresses beyond loopback: only for a network nobody else can reach",
    )
    streams: StreamSizes = StreamSizes()


class RunSettings(BaseModel):
    """Roles of a run on this machine; a role that is left out is not started here."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(
        default="run", pattern=r"^[A-Za-z0-9_-]{1,64}$", description="name of the run and of its directory"
    )
    runs: Path = Field(default=Path("runs"), description="directory in which each run gets a directory of its own")
    bus: BusSettings = BusSettings()
    store: StoreSettings | None = None
    inference: list[InferenceSettings] = []
    learner: LearnerSettings | None = None
    learners: list[LearnerSettings] = Field(
        default=[], description="settings of several learners, each of another model; excludes `learner`"
    )
    role_models: dict[str, str] = Field(
        default={},
        description="models that answer for roles of the agent, as {checker: small}; other roles are answered by the "
        "model that the agent names before the colon",
    )
    auditor: AuditorSettings | None = None
    grader: GraderSettings | None = None
    runners: list[RunnerSettings] = []
    eval: EvalSettings | None = Field(default=None, description="held-out tasks that `lightningbus train` evaluates on")
    optimize: OptimizeSettings | None = Field(
        default=None, description="prompts that `lightningbus optimize` improves, or training in turns with weights"
    )
    budget: BudgetSettings | None = Field(
        default=None, description="time and money after which `lightningbus train` ends training; none: no limit"
    )
    trackers: TrackerSettings = TrackerSettings()

    @field_validator("name")
    @classmethod
    def _free_name(cls, name: str) -> str:
        if name == LATEST:
            raise ValueError(f"{LATEST!r} stands for the newest run: choose another name")
        return name

    @model_validator(mode="after")
    def _policies(self) -> Self:
        if self.learner is not None and self.learners:
            raise ValueError("give `learner`, or `learners` where several models are trained, not both")
        models = [learner.model for learner in self.learners]
        if twice := next((model for model in models if models.count(model) > 1), None):
            raise ValueError(f"two learners train model {twice!r}: give each of `learners` a model of its own")
        known = {*models, *(node.model for node in self.inference), self.main_model}
        known.update(name for runner in self.runners for name in runner.endpoints)
        for learner in self.all_learners:
            served = {model for node in self.inference for model in node.models} | {None}
            teacher = next((each.model for each in learner.teachers if each.model not in served), None)
            if teacher is not None and self.inference:
                raise ValueError(
                    f"teacher.model of model {learner.model!r}: no inference node here serves {teacher!r}; give one "
                    "with this `model` and `frozen: true`, or teacher.url"
                )
        for role, model in self.role_models.items():
            if model not in known and self.inference:
                raise ValueError(
                    f"role_models: no learner, inference node or endpoint here has model {model!r} of role {role!r}"
                )
        return self

    @model_validator(mode="after")
    def _top_k(self) -> Self:
        """Let nodes give as many log-probabilities of a token as teachers on them are asked for."""
        for teacher in (teacher for learner in self.all_learners for teacher in learner.teachers if teacher.top_k):
            self.inference = [
                node.allow_logprobs(teacher.top_k) if teacher.model in node.models else node for node in self.inference
            ]
        return self

    @model_validator(mode="after")
    def _agents(self) -> Self:
        for number, runner in enumerate(self.runners):
            try:
                runner.check_agent()
            except ValueError as error:
                raise ValueError(f"runners.{number}: {error}") from None
        return self

    @model_validator(mode="after")
    def _budget(self) -> Self:
        if self.budget is not None and self.budget.cost and not self.has_prices:
            raise ValueError(
                "budget.cost needs a price: budget.gpu_hour_price, budget.hour_price, that of a judge, or model_prices "
                "of a runner"
            )
        return self

    @model_validator(mode="after")
    def _graded(self) -> Self:
        """Let runners leave the reward to the grader, unless they say otherwise."""
        if self.grader is not None:
            self.runners = [
                runner if "graded" in runner.model_fields_set else runner.model_copy(update={"graded": True})
                for runner in self.runners
            ]
        return self

    @property
    def has_prices(self) -> bool:
        """Whether anything costs money: machines, judges, or models that no node answers."""
        judges = [each.judge for each in self.grader.graders.values()] if self.grader is not None else []
        prices = [judge.price for judge in judges if judge is not None and judge.price is not None]
        prices += [price for runner in self.runners for price in runner.model_prices.values()]
        is_paid = self.budget is not None and self.budget.price_per_hour > 0
        return is_paid or not all(price.is_free for price in prices)

    @property
    def all_learners(self) -> list[LearnerSettings]:
        """Settings of all learners, one or several."""
        return self.learners or ([self.learner] if self.learner is not None else [])

    @property
    def policies(self) -> tuple[str, ...]:
        """Models that are trained; without a learner here, the one that agents call by name."""
        return tuple(learner.model for learner in self.all_learners) or (self.main_model,)

    @property
    def main_model(self) -> str:
        """Model that agents call by name: the first learner's, else the first node's."""
        first: Sequence[LearnerSettings | InferenceSettings] = self.all_learners or self.inference
        return first[0].model if first else DEFAULT_POLICY

    @property
    def optimizes_in_turns(self) -> bool:
        """Whether `lightningbus train` improves prompts too."""
        return self.optimize is not None and self.optimize.every is not None

    def without_learners(self) -> Self:
        """Return the same run without its learners."""
        return self.model_copy(update={"learner": None, "learners": []})


ROLE_SECTIONS: "dict[str, tuple[str, type[BaseModel]]]" = {
    "store": ("store", StoreSettings),
    "inference": ("inference", InferenceSettings),
    "learner": ("learner", LearnerSettings),
    "learners": ("learner", LearnerSettings),
    "runners": ("runner", RunnerSettings),
    "auditor": ("auditor", AuditorSettings),
    "grader": ("grader", GraderSettings),
}
"""Role and settings class by section of a run file."""


def load_run_settings(path: Path) -> RunSettings:
    """Load the settings of a run from its file and the environment; raises `UserError` naming every wrong field."""
    return validate_settings(RunSettings, load_run_fields(path), str(path))


def load_run_fields(path: Path) -> dict[str, Any]:
    """Read the fields of a run file, with each role's environment variables, unvalidated; raises `UserError`."""
    return with_environment(load_fields(path))


def with_environment(fields: "Mapping[str, Any]") -> dict[str, Any]:
    """Merge each role's environment variables into its section; raises `UserError` for a wrong variable."""
    fields = dict(fields)
    warn_about_variables(dict(ROLE_SECTIONS.values()))
    for section, (role, kind) in ROLE_SECTIONS.items():
        if (value := fields.get(section)) is None:  # the role is not started here
            continue
        variables = read_environment(kind, role)
        if variables and isinstance(value, dict):
            fields[section] = merge(value, variables)
        elif variables and isinstance(value, list):
            fields[section] = [merge(entry, variables) if isinstance(entry, dict) else entry for entry in value]
    return fields


def load_fields(path: Path) -> dict[str, Any]:
    """Read the fields of a YAML or JSON file, unvalidated; raises `UserError` if it holds none."""
    try:
        fields = yaml.safe_load(path.read_text()) or {}
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise UserError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    except (ValueError, RecursionError) as error:  # bytes that are no text, days that are none, lists without end
        raise UserError(f"{path} cannot be read as YAML: {type(error).__name__}: {error}") from error
    if not isinstance(fields, dict):
        raise UserError(f"{path} is not a settings file: it holds no fields")
    return fields


def validate_settings(
    kind: type[M],
    fields: "Mapping[str, Any]",
    source: str,
    origins: "Mapping[str, str] | None" = None,
    names: "Mapping[str, str] | None" = None,
) -> M:
    """Validate fields as settings; raises `UserError` naming every wrong field.

    ``origins``: the flag or variable that gave a field such as ``actor.optim.lr``, if it was not ``source``.
    ``names``: the argument of a Python function by the field that it gives, which stands for it in a sentence.
    """
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        problems = [_describe_problem(kind, entry) for entry in error.errors()]
        renamed = [name_argument(problem, names or {}) for problem in problems]
        if renamed != problems:
            source = "" if all(map(str.__ne__, renamed, problems)) else source
            raise UserError(describe_problems(source, renamed)) from error
        sources = [find_source(problem, origins or {}) or source for problem in problems]
        raise UserError(describe_problems(", ".join(dict.fromkeys(sources)), problems)) from error


def describe_problems(source: str, problems: "Sequence[str]") -> str:
    """Describe the errors of a settings file: a sentence for one, a line each for several. ``source`` may be empty."""
    before = f"{source}: " if source else ""
    if len(problems) == 1:
        return f"{before}{problems[0]}"
    return "\n  ".join((f"{before}{len(problems)} settings are wrong", *problems))


def name_argument(problem: str, names: "Mapping[str, str]") -> str:
    """Replace the field that a sentence begins with by the argument which gives it; ``runners.3`` is like the first.

    Pure.
    """
    field = re.split(r"[^\w.]", problem, maxsplit=1)[0]
    name = names.get(re.sub(r"\.\d+(?=\.|$)", "", field))
    return problem if name is None else f"{name}{problem.removeprefix(field)}"


def _describe_problem(kind: type[BaseModel], error: "ErrorDetails") -> str:
    """Describe a wrong field by its path; a sentence about a field below it goes on with that one's name."""
    path, sentence = ".".join(map(str, error["loc"])), _explain(kind, error)
    below = re.split(r"\W", sentence, maxsplit=1)[0]
    is_of_section = error["type"] == "value_error" and below in _fields_at(kind, error["loc"])
    return ("." if is_of_section else ": ").join(filter(None, (path, sentence)))


def _explain(kind: type[BaseModel], error: "ErrorDetails") -> str:
    """Describe a field's error in words of the settings rather than pydantic's."""
    context = error.get("ctx", {})
    if error["type"] == "extra_forbidden":
        *above, name = error["loc"]
        return describe_unknown(str(name), _fields_at(kind, above))
    if error["type"] == "string_pattern_mismatch":
        return PATTERN_ERRORS.get(str(context.get("pattern")), f"it does not match {context.get('pattern')}")
    if error["type"] == "value_error":
        return str(context.get("error", error["msg"]))
    return "it is needed" if error["type"] == "missing" else error["msg"]


def _fields_at(kind: object, above: "Sequence[int | str]") -> set[str]:
    """List the settings at a level of a class; none where several kinds of settings are allowed."""
    for part in above:
        if isinstance(part, str) and isinstance(kind, type) and issubclass(kind, BaseModel):
            field = kind.model_fields.get(part)
            kind = field.annotation if field is not None else None
        elif isinstance(part, str):
            return set()
        kind = _settings_in(kind)
    return set(kind.model_fields) if isinstance(kind, type) and issubclass(kind, BaseModel) else set()


def _settings_in(annotation: object) -> object:
    """Return the settings class in ``list[Settings]`` or ``Settings | None``; None for no class or several."""
    if not get_args(annotation):
        return annotation
    inner = [kind for argument in get_args(annotation) if (kind := _settings_in(argument)) not in (None, type(None))]
    return inner[0] if len(inner) == 1 else None
