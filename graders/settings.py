"""Settings of a grader."""

import hashlib
import json
import re
from pathlib import Path
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from lightningbus.common.role_settings import RoleSettings
from lightningbus.common.token_price import TokenPrice

AGENT_REWARD = "agent"
"""Name of the reward that an agent gave itself, beside those of graders."""


class JudgeSettings(BaseModel):
    """A language model that grades by a rubric, behind any OpenAI-compatible endpoint."""

    model_config = ConfigDict(extra="forbid")

    url: str = Field(description="base URL of the endpoint in the form of OPENAI_BASE_URL: https://api.example.com/v1")
    model: str = Field(min_length=1, description="name of the model at the endpoint")
    api_key_env: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        description="variable of the grader's environment that holds the endpoint's key",
    )
    rubric: str = Field(min_length=1, description="what good work is, in words for the judge")
    compare: Literal["alone", "reference", "pairs"] = Field(
        default="alone",
        description="alone: each rollout gets a score; reference: it is compared with a field of the task's input; "
        "pairs: rollouts of a group are compared with each other, and the reward is the share of wins",
    )
    reference: str = Field(
        default="answer", description="field of the task's input that `compare: reference` compares with"
    )
    min_score: float = Field(default=0.0, description="score of the worst work, which is a reward of 0")
    max_score: float = Field(default=10.0, description="score of the best work, which is a reward of 1")
    max_opponents: int = Field(
        default=4, ge=2, description="most rollouts of its group that a rollout is compared with"
    )
    both_orders: bool = Field(
        default=True, description="compare each pair in both orders; a judge that changes its mind has seen a tie"
    )
    temperature: float = Field(default=0.0, ge=0, description="temperature of the judge's answers")
    max_tokens: int = Field(default=1024, ge=1, description="most tokens of a judge's answer")
    max_chars: int = Field(
        default=24_000,
        ge=100,
        description="most characters that a judge reads of a conversation; its beginning is left out",
    )
    concurrency: int = Field(default=16, ge=1, description="calls to the endpoint at once")
    timeout_seconds: float = Field(default=120.0, gt=0, description="seconds that one call may take")
    patience_seconds: float = Field(
        default=600.0,
        ge=0,
        description="seconds for which an endpoint that does not answer is asked again; then grading has failed",
    )
    max_calls: int | None = Field(
        default=None,
        ge=0,
        description="most calls that one process makes; beyond it grading fails; answers from the cache are none",
    )
    price: TokenPrice | None = Field(default=None, description="price of its tokens; default: its calls cost nothing")

    @field_validator("url")
    @classmethod
    def _http(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("it is no URL, such as https://api.example.com/v1")
        if parts.username is not None or parts.query or parts.fragment:
            raise ValueError("it has a user, a query or a fragment; api_key_env names the key")
        return value.rstrip("/")

    @model_validator(mode="after")
    def _scale(self) -> Self:
        if self.max_score <= self.min_score:
            raise ValueError(f"max_score {self.max_score:g} is to be above min_score {self.min_score:g}")
        return self


class NamedGraderSettings(BaseModel):
    """One of the graders of a rollout: a function, or a judge."""

    model_config = ConfigDict(extra="forbid")

    function: str | None = Field(
        default=None,
        pattern=r"^[\w.]+:[\w.]+$",
        description="module:function called as f(input, result) or f(input, result, rollout) -> number, sync or "
        "async; excludes `judge`",
    )
    judge: JudgeSettings | None = Field(default=None, description="a language model that grades; excludes `function`")
    weight: float = Field(
        default=1.0,
        description="factor of its reward in the rollout's; with 0 it is recorded alone, and its failure is none",
    )

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if (self.function is None) == (self.judge is None):
            raise ValueError("give either a function (module:function) or a judge")
        return self


class GraderSettings(RoleSettings):
    """The graders of a run by name; a rollout's reward is the weighted sum of theirs."""

    graders: dict[str, NamedGraderSettings] = Field(
        min_length=1, max_length=32, description="functions and judges, each by the name of its reward"
    )
    agent_weight: float = Field(
        default=0.0,
        description="factor of the reward that the agent gave itself, which is named `agent`; with a factor, grading a "
        "rollout without one fails",
    )
    python_executable: Path | None = Field(
        default=None, description="interpreter that runs the functions; default: the grader's own"
    )
    working_dir: Path = Field(
        default=Path(), description="directory in which functions run; its modules are importable"
    )
    processes: int = Field(default=2, ge=1, description="processes of each function; each grades one rollout at a time")
    function_timeout_seconds: float = Field(
        default=120.0, gt=0, description="seconds a function may take for one rollout"
    )
    max_attempts: int = Field(
        default=3, ge=1, description="tries of a grader whose answer is unusable; then grading has failed"
    )
    concurrency: int = Field(
        default=32, ge=1, description="attempts that one process grades at once; see `max_held` for pairs"
    )
    max_held: int = Field(
        default=1024,
        ge=1,
        description="attempts that a process which compares pairs holds at once: those that wait for their group too",
    )
    group_timeout_seconds: float = Field(
        default=300.0,
        gt=0,
        description="seconds without another rollout of a group after which those there are compared, for judges that "
        "compare pairs",
    )
    cache: Path | None = Field(
        default=None,
        description="SQLite file that keeps judges' answers by the digest of what they were asked; default: none",
    )
    drain_timeout_seconds: float = Field(
        default=20.0, ge=0, description="seconds in which begun grades may be finished after a request to stop"
    )
    id: str | None = Field(
        default=None, description="name of this grader; default: host-pid", pattern=r"^[A-Za-z0-9_-]{1,64}$"
    )

    @field_validator("graders")
    @classmethod
    def _named(cls, value: dict[str, NamedGraderSettings]) -> dict[str, NamedGraderSettings]:
        for name in value:
            if not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", name) or name in (AGENT_REWARD, "reward"):
                raise ValueError(
                    f"{name[:80]!r} names no grader: letters, digits, _, . and -, at most 64, not agent or reward"
                )
        return value

    @property
    def num_slots(self) -> int:
        """Attempts that one process takes at once."""
        return self.max_held if self.compares_pairs else self.concurrency

    @property
    def compares_pairs(self) -> bool:
        """Whether a judge needs the whole group."""
        return any(grader.judge is not None and grader.judge.compare == "pairs" for grader in self.graders.values())

    def compute_sha256(self) -> str:
        """Compute the SHA-256 of what decides a grade: the graders with the source of their functions, and weights."""
        graders = {}
        for name, grader in sorted(self.graders.items()):
            fields = grader.model_dump(mode="json")
            if grader.judge is not None:
                for field in ("api_key_env", "concurrency", "timeout_seconds", "patience_seconds", "max_calls"):
                    del fields["judge"][field]
            elif grader.function is not None:
                fields["source"] = _hash_source(self.working_dir, grader.function)
            graders[name] = fields
        described = {"graders": graders, "agent_weight": self.agent_weight}
        return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()


def _hash_source(working_dir: Path, function: str) -> str:
    """Return the SHA-256 of a function's module; empty if it does not lie in the working directory."""
    path = working_dir.joinpath(*function.partition(":")[0].split("."))
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if file.is_file():
            return hashlib.sha256(file.read_bytes()).hexdigest()
    return ""
