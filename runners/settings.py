"""Settings of a runner."""

import re
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from lightningbus.common.role_settings import RoleSettings
from lightningbus.common.token_price import TokenPrice
from lightningbus.schemas.tasks import AUTO_MODEL

ONE_AGENT = "give either an agent (module:function) or a command"


class EndpointSettings(BaseModel):
    """An OpenAI-compatible endpoint that answers the calls to one model; what it answers is no training data."""

    model_config = ConfigDict(extra="forbid")

    url: str = Field(description="base URL of the endpoint in the form of OPENAI_BASE_URL: https://api.example.com/v1")
    model: str | None = Field(
        default=None, min_length=1, description="name of the model at the endpoint; default: its name in `endpoints`"
    )
    api_key_env: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        description="variable of the runner's own environment that holds the key; agents do not get it",
    )

    @field_validator("url")
    @classmethod
    def _http(cls, value: str) -> str:
        try:
            parts = urlsplit(value)
            parts.port  # noqa: B018 - raises ValueError for a port that is none
        except ValueError:
            raise ValueError("it is no URL, such as https://api.example.com/v1") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("it is no URL, such as https://api.example.com/v1")
        if parts.username is not None or parts.query or parts.fragment:
            raise ValueError("it has a user, a query or a fragment; api_key_env names the key")
        return value


class WorkspaceSettings(BaseModel):
    """Workspaces: a fresh copy of files for each rollout, which its task names."""

    model_config = ConfigDict(extra="forbid")

    provider: Literal["bubblewrap", "process", "docker", "kubernetes"] = Field(
        default="bubblewrap",
        description="where programs run: bubblewrap, a sandbox that sees its workspace and reaches the gateway alone; "
        "process, as the runner's own user; docker, a container of Docker or Podman; kubernetes, a job of a cluster",
    )
    image: str | None = Field(
        default=None,
        min_length=1,
        description="image of the container of a task that names none, and of the trial at start; it has Python 3.8 or "
        "newer",
    )
    sources: list[Path] = Field(
        default=[Path("workspaces")],
        min_length=1,
        description="directories that hold the repositories, archives and graders which tasks name; empty for agents",
    )
    directory: Path | None = Field(
        default=None,
        description="directory for the copies; default: one of this user in the directory for temporary files",
    )
    copy_method: Literal["auto", "overlay", "reflink", "copy"] = Field(
        default="auto", description="way to copy: overlay, reflink, or copy; auto tries them in this order at start"
    )
    binds: list[Path] = Field(
        default=[],
        description="further directories that agents and graders see in bubblewrap, such as that of a program",
    )
    docker_socket: Path | None = Field(
        default=None,
        description="Unix socket of Docker or Podman; default: that of DOCKER_HOST, else the first that is there",
    )
    namespace: str | None = Field(
        default=None,
        pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$",
        description="namespace for the jobs in Kubernetes; default: that of the pod, or of the kubeconfig's context",
    )
    cpus: float | None = Field(default=None, gt=0, description="most CPUs of a container")
    start_seconds: float = Field(
        default=600.0, gt=0, description="seconds in which a job of Kubernetes must run, with its image fetched"
    )
    image_pull_secret: str | None = Field(
        default=None,
        pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$",
        description="secret of Kubernetes with the login of a private registry; Docker and Podman use this user's own "
        "logins",
    )
    max_image_gib: float = Field(
        default=100.0,
        gt=0,
        description="disk of the images that the runner pulls by Docker or Podman; beyond it the least recently used "
        "one is removed",
    )
    max_hours: float = Field(default=24.0, gt=0, description="hours after which a container ends, whatever it does")
    max_files: int = Field(default=200_000, ge=1, description="most files of a workspace at its beginning")
    max_gib: float = Field(default=4.0, gt=0, description="largest workspace at its beginning, in GiB")
    max_artifact_kib: int = Field(
        default=256, ge=1, le=1024, description="first KiB that are kept of the diff, and of each artifact"
    )
    max_grade_seconds: float = Field(
        default=600.0, gt=0, description="longest time of a grader, whatever its task says"
    )
    num_cached: int = Field(
        default=32, ge=1, description="workspaces whose files are kept for the next rollout of a task"
    )

    @property
    def has_containers(self) -> bool:
        """Whether each workspace is a container."""
        return self.provider in ("docker", "kubernetes")


class RunnerSettings(RoleSettings):
    """One runner: which agent it runs, how many rollouts at once, in which interpreter."""

    entrypoint: str | None = Field(
        default=None,
        description="agent as module:function, sync or async; excludes `command`",
        pattern=r"^[\w.]+:[\w.]+$",
    )
    command: list[str] | None = Field(
        default=None,
        description="agent as any program, with the task as JSON on stdin and the result as JSON on stdout; excludes "
        "`entrypoint`",
        min_length=1,
    )
    agent_name: str = Field(
        default="default",
        description="name of the agent whose tasks this runner takes",
        pattern=r"^[A-Za-z0-9_-]{1,64}$",
    )
    python_executable: Path | None = Field(
        default=None, description="interpreter that runs the agent; default: the runner's own"
    )
    working_dir: Path = Field(
        default=Path(), description="directory in which the agent runs; its modules are importable"
    )
    concurrency: int | None = Field(
        default=None,
        ge=1,
        le=16384,
        description="rollouts that run at once; default: 4 at first, then as many as throughput, memory and nodes "
        "allow, at most 256; with `endpoints` it stays 4",
    )
    max_concurrent_per_process: int = Field(
        default=1,
        ge=1,
        description="rollouts that share one process; above 1 the agent is an async function of (task, endpoint), and "
        "endpoint has base_url, api_key, otlp_endpoint and otlp_headers of its model",
    )
    reward_fn: str | None = Field(
        default=None,
        description="module:function called as f(input, result) -> reward, in its own process with the agent's "
        "interpreter; default: the agent's result is the reward",
        pattern=r"^[\w.]+:[\w.]+$",
    )
    reward_timeout_seconds: float = Field(
        default=120.0,
        gt=0,
        description="seconds a reward function may take for one rollout, after the rollout's own; beyond it the "
        "outcome is reward_timeout, without a reward",
    )
    graded: bool = Field(
        default=False,
        description="leave the reward to graders on the bus, who end the rollout; the agent may still give one, which "
        "they can weigh. With a section `grader` in a run file the default is true",
    )
    memory_limit_gib: float | None = Field(
        default=None,
        gt=0,
        description="memory limit in GiB of an agent's process, and of it together with all processes it starts",
    )
    max_file_gib: float | None = Field(default=None, gt=0, description="largest file an agent may write, in GiB")
    max_open_files: int | None = Field(default=None, ge=16, description="most open files of an agent's process")
    max_processes: int | None = Field(
        default=None,
        ge=1,
        description="most processes of an agent, including all that it starts; beyond it they are killed",
    )
    max_tasks_per_child: int | None = Field(
        default=None,
        ge=1,
        description="rollouts after which an agent's process is replaced by a fresh one; 1: one process per rollout",
    )
    sandbox_command: list[str] = Field(
        default=[],
        description="words before the agent's command, as [bwrap, ...]. Placeholders: {path} the agent's directory, "
        "{tmp} its private one, {python} its interpreter, {venv} and {base} that one's environment and "
        "installation, {worker} our scripts; {relay}, {gateway} and {address} reach the gateway without a "
        "network",
    )
    scripted_answers: list[str] = Field(
        default=["42"],
        min_length=1,
        description="answers of the model in the rollout that is tried before training, call after call; the last one "
        "goes on. Give those that lead an agent to its further calls",
    )
    workspace: WorkspaceSettings | None = Field(
        default=None,
        description="a fresh copy of files for each rollout, as the field `workspace` of its task's input says",
    )
    max_concurrent_requests: int = Field(
        default=64,
        ge=1,
        description="most requests of one agent that the gateway answers at once, and most answers sampled for them; "
        "beyond it 429",
    )
    ignored_request_fields: list[str] = Field(
        default=[],
        description="fields of model calls that the gateway drops; any other unknown field is refused, because it "
        "could change what a request means",
    )
    model_aliases: dict[str, str] = Field(
        default={},
        description="model, with a role if wanted, that answers calls to a name which agents use: "
        "{claude-haiku-*: policy:small, '*': policy}; the first pattern that fits counts, a served model keeps its own",
    )
    model_prices: dict[str, TokenPrice] = Field(
        default={},
        description="prices of the models that no node answers: of `endpoints`, and of calls past the gateway that "
        "agents record as spans; by pattern of the model's name, of which the first that fits counts: "
        "{gpt-4o*: {input: 2.5, output: 10}}",
    )
    rate_limit: float | None = Field(
        default=None,
        gt=0,
        description="most requests per second of one agent at the gateway; beyond it 429 with Retry-After",
    )
    env: list[str] = Field(
        default=[],
        description="variables for the agent beside PATH, HOME, LANG, LC_*, TZ, TMPDIR and its model's address: names "
        "to pass on, or NAME=VALUE, as [HF_HOME, TURNS=6]; or a mapping of names to values",
    )
    id: str | None = Field(
        default=None, description="name of this runner; default: host-pid", pattern=r"^[A-Za-z0-9_-]{1,64}$"
    )
    host: str = Field(default="127.0.0.1", description="address on which the agent's gateway listens")
    inference_api_key_file: Path | None = Field(
        default=None, description="file with the key that inference nodes require; agents do not get it"
    )
    endpoints: dict[str, EndpointSettings] = Field(
        default={},
        description="OpenAI-compatible endpoints, each by the name of the model that it answers in place of any node; "
        "their calls are recorded without token ids, and never trained on",
    )
    ack_wait: float = Field(
        default=30.0, gt=0, le=60, description="seconds after which a dead runner's tasks go to another"
    )
    sticky_weight_version: bool = Field(
        default=False,
        description="keep the weight version with which a rollout began while a node holds it (`lora` of a node), "
        "then use the newest; false: every call uses the newest",
    )
    token_in_token_out: bool = Field(
        default=True,
        description="send a continuing chat as the tokens it was made of, where rendering it again would change them",
    )
    drain_timeout_seconds: float = Field(
        default=20.0, ge=0, description="seconds that running rollouts may finish in after a request to stop"
    )

    @field_validator("env", mode="before")
    @classmethod
    def _of_mapping(cls, value: Any) -> Any:
        return [f"{name}={text}" for name, text in value.items()] if isinstance(value, dict) else value

    @field_validator("env")
    @classmethod
    def _named(cls, value: list[str]) -> list[str]:
        for entry in value:
            if not re.match(r"[A-Za-z_][A-Za-z0-9_]*(=|$)", entry) or "\0" in entry:
                raise ValueError(f"{entry[:80]!r} is neither a variable's name nor NAME=VALUE")
        return value

    @field_validator("endpoints")
    @classmethod
    def _are_models(cls, value: dict[str, EndpointSettings]) -> dict[str, EndpointSettings]:
        for name in value:
            if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) or name == AUTO_MODEL:
                raise ValueError(f"{name[:80]!r} is no name of a model: letters, digits, _ and -, at most 64, not auto")
        return value

    @model_validator(mode="after")
    def _keys_stay_here(self) -> Self:
        passed_on = {entry.partition("=")[0] for entry in self.env}
        for name, endpoint in self.endpoints.items():
            if endpoint.api_key_env in passed_on:
                raise ValueError(f"env gives agents {endpoint.api_key_env}, the key of endpoint {name!r}")
        return self

    def check_agent(self) -> None:
        """Raise ValueError where no agent is named, which settings for `lightningbus.train` leave to its arguments."""
        if self.entrypoint is None and self.command is None:
            raise ValueError(ONE_AGENT)

    @model_validator(mode="after")
    def _one_agent(self) -> Self:
        if self.entrypoint is not None and self.command is not None:
            raise ValueError(ONE_AGENT)
        if self.max_concurrent_per_process > 1 and self.command is not None:
            raise ValueError(
                "max_concurrent_per_process goes with a Python agent; a command is a process for each rollout"
            )
        if self.max_tasks_per_child is not None and (self.max_concurrent_per_process > 1 or self.command is not None):
            raise ValueError("max_tasks_per_child goes with a Python agent that has a process for each slot")
        if self.reward_fn is not None and self.command is not None:
            raise ValueError("a reward function goes with a Python agent; a command prints its reward")
        return self

    @model_validator(mode="after")
    def _one_sandbox(self) -> Self:
        if self.workspace is None:
            return self
        if self.max_concurrent_per_process > 1 or self.max_tasks_per_child not in (None, 1):
            raise ValueError("with workspace each rollout has a process of its own")
        if self.reward_fn is not None:
            raise ValueError("with workspace the reward is a grader's or the agent's: leave out reward_fn")
        provider = self.workspace.provider
        if self.sandbox_command and provider != "process":
            raise ValueError(f"sandbox_command goes with workspace.provider: process; {provider} is a sandbox itself")
        if self.workspace.has_containers and self.workspace.image is None:
            raise ValueError(f"workspace.provider: {provider} needs workspace.image, such as python:3.12-slim")
        if provider == "kubernetes" and self.max_processes is not None:
            raise ValueError("max_processes does not go with kubernetes: its nodes limit processes (podPidsLimit)")
        return self
