"""Settings of the learner. What verl calls by a name is called by that name here."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from lightningbus.common.role_settings import ModelRoleSettings
from lightningbus.learner.settings.algorithm import (
    GROUPLESS,
    ActorSettings,
    AlgorithmSettings,
    CreditSettings,
    CriticSettings,
    LoraSettings,
    TaskSelectionSettings,
    TaskSet,
    TasksSetting,
)
from lightningbus.learner.settings.engine import EngineSettings
from lightningbus.learner.settings.loss_parts import (
    Direction,
    LossWeights,
    PreferenceSettings,
    SupervisedSettings,
    TeacherList,
    TeacherSetting,
    TeacherSettings,
)
from lightningbus.learner.settings.verl import VerlSettings
from lightningbus.learner.settings.weights import WeightSettings
from lightningbus.tasks.task_source import TaskSource

NAME = r"^[A-Za-z0-9_-]{1,64}$"
RETRY_SECONDS = 60.0
"""Seconds between two attempts of a rollout: enough to notice a dead runner and find another one."""
STEP_FIELDS = {
    *("actor", "algorithm", "credit", "critic", "failed_rollouts", "loss_weights", "max_staleness", "overlong"),
    *("reward", "seq_len", "sequence_mode", "staleness", "train_roles"),
}
"""Settings that decide what a training step makes of its rollouts, beside the model and the engine."""
SHARED_SETTINGS = {
    "agent",
    "group_size",
    "max_attempts",
    "role_models",
    "rollout_timeout_seconds",
    "sampling_params",
    "seed",
}
"""Settings that learners of one run have in common, because they dispatch the same tasks."""
TASK_LIMITS = {"max_attempts", "rollout_timeout_seconds", "sampling_params"}
"""Settings that say how a task is run, and not which tasks there are: the only learner of a run may change them."""
REPLACED_PER_GROUP = 10
"""Groups without signal that are replaced for each group of a step, where the user gave no number."""
GROUPS_ONE_BY_ONE = 10
"""Tried with pauses, once all that were under way gave nothing to train on."""


class StalenessSettings(BaseModel):
    """Measures that enforce `max_staleness`: before a task goes out, when a group is taken, and in the batch."""

    model_config = ConfigDict(extra="forbid")

    admission: Literal["bounded", "unbounded"] = Field(
        default="bounded",
        description="bounded: dispatch no more tasks than max_staleness allows; unbounded: dispatch without that limit",
    )
    order: Literal["oldest_first", "dispatch"] = Field(
        default="oldest_first",
        description="order in which ended groups are trained: oldest_first, or dispatch, which waits for the slowest "
        "group",
    )
    on_exceed: Literal["keep", "mask", "drop"] = Field(
        default="keep",
        description="treatment of a rollout with tokens beyond max_staleness. keep: train it, corrected; mask: leave "
        "those tokens out; drop: discard it and dispatch its task again",
    )
    max_wait_seconds: float | None = Field(
        default=None,
        ge=0,
        description="seconds that training waits for a group which the next step would put beyond max_staleness; then "
        "others go first, and it is trained late. None: as long as the group may take",
    )


class LearnerSettings(ModelRoleSettings):
    """One learner: which model it trains, on which tasks, how, and how far behind a rollout may be."""

    run: str = Field(default="run", description="name of the run; only rollouts of this run are used", pattern=NAME)
    model_path: Path = Field(description="Hugging Face model directory to start from")
    model: str = Field(
        default="policy", description="name of the trained model, under which its versions are published", pattern=NAME
    )
    tasks: TasksSetting | None = Field(
        default=None,
        description="training tasks to dispatch: a path in the form of `path` below, or these fields, or a list of "
        "sets that have `name`, `weight`, `agent`, `group_size`, `reward` and `credit` too; none: tasks come from "
        "other publishers, with this run's name",
    )
    agent: str = Field(default="default", description="name of the agent that runs the tasks", pattern=NAME)
    task_model: str | None = Field(
        default=None, description="name of the model in agents' calls, as in `policy:role`; none: `model`", pattern=NAME
    )
    role_models: dict[str, str] = Field(
        default={}, description="models that answer for some roles in place of the task's own, as {checker: small}"
    )
    group_size: int = Field(
        default=8,
        ge=1,
        description="rollouts per task: GRPO's group (verl: rollout.n); 1 is for gae and reinforce_plus_plus only, "
        "which do not compare rollouts",
    )
    groups_per_step: int = Field(
        default=16,
        ge=0,
        description="groups per training step (verl: train_batch_size); 0: `supervised` or `preferences` alone",
    )
    max_steps: int = Field(
        default=100, ge=0, description="training steps in total; 0 publishes the first version and ends"
    )
    max_staleness: int = Field(
        default=2, ge=0, description="largest number of versions by which a token may lag behind the one being trained"
    )
    max_mismatch: float | None = Field(
        default=0.2,
        gt=0,
        description="largest divergence of engine and learner, by the k3 estimate in nats per token, on the tokens of "
        "a step that the newest version sampled, without truncation; beyond it the learner ends. It also ends after "
        "several steps in which many ratios of these tokens are clipped. Without engine.check_model, or with none, "
        "there is no bound",
    )
    rollout_timeout_seconds: float = Field(default=60.0, gt=0, description="seconds a rollout may take")
    max_attempts: int = Field(default=3, ge=1, description="attempts per rollout while the infrastructure fails")
    group_timeout_seconds: float | None = Field(
        default=None,
        gt=0,
        description="seconds a group waits for its next rollout to end; none: the time that rollout_timeout_seconds "
        "and max_attempts allow",
    )
    sampling_params: dict[str, Any] = Field(
        default={"temperature": 1.0}, description="sampling settings of training rollouts"
    )
    failed_rollouts: Literal["mask", "zero"] = Field(
        default="mask",
        description="treatment of a rollout whose agent raised or ran out of time. mask: leave it out; zero: reward 0",
    )
    max_failed_groups: int | None = Field(
        default=None,
        ge=1,
        description="groups in a row without anything to train on, as when every agent fails, after which the learner "
        "ends with the reasons; failures of the infrastructure do not count. None: all that are under way "
        "at once, and 10 more, tried one by one",
    )
    train_roles: list[str] = Field(
        default=[], description="roles to train (the part after ':' in the model name); none: all"
    )
    reward: str = Field(
        default="",
        description="name of the reward that trains this model, where agents give several; none: the main one",
        max_length=64,
    )
    credit: CreditSettings = CreditSettings()
    task_selection: TaskSelectionSettings = TaskSelectionSettings()
    sequence_mode: Literal["trajectory", "transition"] = Field(
        default="trajectory",
        description="trajectory: calls that extend each other share a sequence; transition: each call has its own",
    )
    seq_len: int = Field(default=8192, ge=16, description="longest prompt plus response that is trained on, in tokens")
    overlong: Literal["mask", "split"] = Field(
        default="mask",
        description="treatment of a call longer than seq_len. mask: leave it out; split: train it in windows with "
        "less context",
    )
    staleness: StalenessSettings = StalenessSettings()
    seed: int = Field(
        default=0,
        description="seed of the order of tasks, and of random choices in training. What vLLM samples does not follow "
        "it, so two runs with one seed differ",
    )
    id: str | None = Field(default=None, description="name of this learner; default: host-pid", pattern=NAME)
    cpu_threads: int | None = Field(
        default=None, gt=0, description="CPU threads of the computation; default: torch's own choice"
    )
    checkpoint_dir: Path = Field(default=Path("runs/checkpoints"), description="directory of the checkpoints")
    disk_free_mib: int = Field(
        default=1024, ge=0, description="free MiB on the checkpoints' disk below which an alert is raised"
    )
    weight_sync_interval: int = Field(default=1, ge=1, description="steps between weight versions")
    checkpoint_interval: int | None = Field(
        default=None,
        ge=1,
        description="steps between checkpoints, a multiple of weight_sync_interval; none: as few as "
        "checkpoint_max_overhead asks for",
    )
    checkpoint_max_overhead: float = Field(
        default=0.05,
        gt=0,
        lt=1,
        description="largest share of the training time that checkpoints may take, where checkpoint_interval is not "
        "set; a checkpoint is written while the next steps are trained, and its CPU time counts",
    )
    checkpoint_max_repeat_seconds: float = Field(
        default=1800.0,
        gt=0,
        description="seconds of training after which a checkpoint is written whatever it takes, where "
        "checkpoint_interval is not set; a restart repeats no more, beside the time of a write and of a version",
    )
    rollout_bytes: int | None = Field(
        default=None,
        ge=1,
        description="size of a rollout on the bus in bytes, for checks of stream sizes; none: derived from seq_len",
    )
    keep_last_checkpoints: int = Field(
        default=2, ge=1, description="number of checkpoints kept; a step is replayed from the checkpoint before it"
    )
    keep_weight_versions: int = Field(
        default=4,
        ge=1,
        description="number of weight versions kept for nodes to fetch; the bases of deltas among them are kept too",
    )
    weights: WeightSettings = WeightSettings()
    algorithm: AlgorithmSettings = AlgorithmSettings()
    actor: ActorSettings = ActorSettings()
    loss_weights: LossWeights = LossWeights()
    supervised: SupervisedSettings | None = Field(default=None, description="answers to imitate; none: rewards alone")
    preferences: PreferenceSettings | None = Field(
        default=None, description="pairs of a better and a worse answer, with `groups_per_step: 0`; none: no pairs"
    )
    teacher: TeacherSetting = Field(
        default=None,
        description="model to agree with, or a list of several: the first whose `labels` and `roles` fit scores a "
        "call; none: no distillation",
    )
    critic: CriticSettings = CriticSettings()
    lora: LoraSettings = LoraSettings()
    engine: EngineSettings = EngineSettings()
    verl: VerlSettings = VerlSettings()

    @field_validator("credit", mode="before")
    @classmethod
    def _credit_by_name(cls, value: Any) -> Any:
        return {"method": value} if isinstance(value, str) else value

    @property
    def main_model(self) -> str:
        """The model that agents call by name."""
        return self.task_model or self.model

    @property
    def task_sets(self) -> Sequence[TaskSet]:
        """The sets of tasks; empty where there is one without a name."""
        return self.tasks if isinstance(self.tasks, list) else ()

    @property
    def task_sources(self) -> Sequence[Path | TaskSource]:
        """The sources of tasks: one for each set."""
        if isinstance(self.tasks, list):
            return self.tasks
        return [] if self.tasks is None else [self.tasks]

    @property
    def teachers(self) -> Sequence[TeacherSettings]:
        """The teachers, in the order in which they are tried for a call."""
        if isinstance(self.teacher, TeacherList):
            return self.teacher.root
        return [] if self.teacher is None else [self.teacher]

    @property
    def direction(self) -> Direction:
        """The divergence of teachers that give their likeliest tokens."""
        return next((each.direction for each in self.teachers if each.top_k), "reverse")

    @property
    def agents(self) -> dict[str, str]:
        """Names of the agents that run the training tasks, each by the setting that names it."""
        sets = {f"tasks.{each.name}.agent": each.agent for each in self.task_sets}
        named = {setting: agent for setting, agent in sets.items() if agent is not None}
        return ({} if sets and len(named) == len(sets) else {"agent": self.agent}) | named

    @property
    def max_group_size(self) -> int:
        """Rollouts of the largest group."""
        return max([each.group_size or self.group_size for each in self.task_sets], default=self.group_size)

    @property
    def num_groups_under_way(self) -> int:
        """Groups that the bound on staleness admits at once."""
        return (self.max_staleness + 1) * self.groups_per_step

    @property
    def max_replaced_per_step(self) -> int:
        """Groups without signal that one step may replace."""
        limit = self.task_selection.max_replaced_per_step
        return REPLACED_PER_GROUP * self.groups_per_step if limit is None else limit

    @property
    def failed_groups_limit(self) -> int:
        """Groups in a row that may give nothing to train on."""
        return self.max_failed_groups or self.num_groups_under_way + GROUPS_ONE_BY_ONE

    @property
    def step_fields(self) -> dict[str, Any]:
        """The settings that decide what a training step computes, as JSON has them."""
        schedules = {self.actor.optim.lr_scheduler_type, self.critic.optim.lr_scheduler_type}
        fields = STEP_FIELDS if schedules == {"constant"} else STEP_FIELDS | {"max_steps"}
        return self.model_dump(mode="json", include=fields)

    def with_step_fields(self, fields: Mapping[str, Any]) -> Self:
        """Return these settings with others that decide what a training step computes, see `step_fields`."""
        return type(self).model_validate({**self.model_dump(), **fields})

    @property
    def has_single_update(self) -> bool:
        """Whether a training step has one optimiser step, on the whole batch."""
        size = self.actor.ppo_mini_batch_size
        return self.actor.ppo_epochs == 1 and (size is None or size >= self.groups_per_step)

    @property
    def max_group_seconds(self) -> float:
        """Seconds a group waits for its next rollout: by default as long as its task may be tried."""
        per_attempt = self.rollout_timeout_seconds + RETRY_SECONDS
        return self.group_timeout_seconds or self.max_attempts * per_attempt

    @model_validator(mode="after")
    def _group_size(self) -> Self:
        sizes = [each.group_size for each in self.task_sets if each.group_size is not None]
        if min([self.group_size, *sizes]) < self.algorithm.min_group_size:
            raise ValueError(
                f"group_size must be at least {self.algorithm.min_group_size}: "
                f"{self.algorithm.adv_estimator} compares the rollouts of a task; gae and reinforce_plus_plus do not"
            )
        return self

    @model_validator(mode="after")
    def _without_rollouts(self) -> Self:
        if self.groups_per_step == 0 and self.supervised is None and self.preferences is None:
            raise ValueError(
                "groups_per_step must be at least 1: 0 is for a learner with `supervised` or `preferences`"
            )
        if self.groups_per_step == 0 and self.tasks is not None:
            raise ValueError("tasks need groups_per_step of at least 1: with 0 no rollout is trained")
        return self

    @model_validator(mode="after")
    def _preferences(self) -> Self:
        if self.preferences is None:
            return self
        if self.groups_per_step or self.supervised is not None:
            raise ValueError("preferences are trained alone: with groups_per_step 0, and without `supervised`")
        if self.actor.ppo_epochs != 1 or self.actor.ppo_mini_batch_size is not None:
            raise ValueError(
                "preferences need one update a step: leave out actor.ppo_epochs and actor.ppo_mini_batch_size"
            )
        return self

    @model_validator(mode="after")
    def _task_selection(self) -> Self:
        rules, estimator = self.task_selection, self.algorithm.adv_estimator
        if self.tasks is None and (rules.selects or rules.replace_without_signal):
            raise ValueError("task_selection needs `tasks`: the learner cannot choose tasks of other publishers")
        if rules.replace_without_signal and estimator in GROUPLESS:
            raise ValueError(
                f"task_selection.replace_without_signal is for estimators that compare the rollouts of a task; with "
                f"{estimator} a group of equal rewards teaches too"
            )
        if rules.replace_without_signal and self.teacher is not None:
            raise ValueError(
                "task_selection.replace_without_signal: leave it out with `teacher`, from which every group learns"
            )
        return self

    @model_validator(mode="after")
    def _group_timeout(self) -> Self:
        limit, deadline = self.group_timeout_seconds, self.rollout_timeout_seconds
        if limit is not None and limit < deadline:
            raise ValueError(
                f"group_timeout_seconds ({limit:g}) must be at least rollout_timeout_seconds ({deadline:g}): "
                "a group would be trained without its slow rollouts"
            )
        return self

    @model_validator(mode="after")
    def _temperature(self) -> Self:
        temperature = self.sampling_params.get("temperature", 1.0)
        if not isinstance(temperature, int | float) or temperature <= 0:
            raise ValueError("sampling_params.temperature must be above 0: a greedy group has no advantage")
        return self

    @model_validator(mode="after")
    def _teacher(self) -> Self:
        if self.teacher is not None and self.groups_per_step == 0:
            raise ValueError("teacher scores rollouts: it needs groups_per_step of at least 1")
        if self.teacher is not None and self.sampling_params.get("temperature", 1.0) != 1.0:
            raise ValueError("teacher needs sampling_params.temperature 1: its probabilities are those at 1")
        if any(each.model == self.model and each.hint is None for each in self.teachers):
            raise ValueError(
                f"teacher.model: {self.model!r} is the model that is trained: name another one, or give it a `hint`"
            )
        if self.tasks is None and any(each.labels for each in self.teachers):
            raise ValueError("teacher.labels needs `tasks`: the learner does not know the labels of others' tasks")
        if self.loss_weights.rl == 0 and self.teacher is None and self.supervised is None:
            raise ValueError("loss_weights.rl: 0 leaves nothing to learn from without `teacher` or `supervised`")
        return self

    @model_validator(mode="after")
    def _micro_batches(self) -> Self:
        limit = self.actor.ppo_max_token_len_per_gpu
        if self.seq_len > limit * self.engine.ulysses_sequence_parallel_size:
            raise ValueError(
                f"actor.ppo_max_token_len_per_gpu ({limit}) must be at least seq_len ({self.seq_len}): a sequence is "
                "computed in one piece"
            )
        return self

    @model_validator(mode="after")
    def _broadcast(self) -> Self:
        if self.lora.lora_rank and self.weights.broadcast.backend != "off":
            raise ValueError("weights.broadcast is for whole weights: adapters are small, and are fetched")
        if self.weights.canary is not None and self.weights.broadcast.backend != "off":
            raise ValueError(
                "weights.broadcast is to all nodes at once, weights.canary to one first: choose one of them"
            )
        return self

    @model_validator(mode="after")
    def _intervals(self) -> Self:
        if self.checkpoint_interval is not None and self.checkpoint_interval % self.weight_sync_interval:
            raise ValueError(
                "checkpoint_interval must be a multiple of weight_sync_interval: a checkpoint publishes its version"
            )
        if self.staleness.admission == "bounded" and self.max_staleness < self.weight_sync_interval - 1:
            interval = self.weight_sync_interval
            raise ValueError(
                f"max_staleness must be at least {interval - 1}: with weight_sync_interval {interval} tokens are that "
                "many steps old when a version is followed by the next"
            )
        return self
