"""Settings of tasks, credit, advantages, losses and optimisers. What verl calls by a name has that name here."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from lightningbus.learner.settings.import_path import is_import_path
from lightningbus.schemas.semconv.span_kinds import SpanKind
from lightningbus.tasks.task_source import NamedTaskSource, TaskSource, parse_task_source

GROUPLESS = {"gae", "reinforce_plus_plus"}
"""Estimators that do not compare the rollouts of a task."""
UNIFORM, DIFFICULTY = "uniform", "difficulty"
"""Built-in samplers of tasks."""


class TaskSelectionSettings(BaseModel):
    """Choice of training tasks, and of the groups that a step is made of."""

    model_config = ConfigDict(extra="forbid")

    sampler: str = Field(
        default=UNIFORM,
        description="order of the tasks. uniform: each once a pass; difficulty: seldom where all rollouts of a task "
        "have failed, or all have passed; or module:function of your own",
    )
    pass_reward: float = Field(
        default=1.0,
        description="reward from which a rollout has passed, for the difficulty of its task",
        allow_inf_nan=False,
    )
    memory: float = Field(
        default=0.7,
        ge=0,
        lt=1,
        description="share of a task's earlier results that still counts after each new group of it: the policy has "
        "changed since",
    )
    replace_without_signal: bool = Field(
        default=False,
        description="leave a group whose rollouts all have advantage 0 out of the step, and dispatch another one in "
        "its place (DAPO's dynamic sampling); its results count for the difficulty of its task",
    )
    max_replaced_per_step: int | None = Field(
        default=None,
        ge=0,
        description="groups without signal that are replaced in one step; further ones are trained as they are. None: "
        "10 times groups_per_step",
    )

    @property
    def selects(self) -> bool:
        """Whether the sampler looks at the results of tasks."""
        return self.sampler != UNIFORM

    @model_validator(mode="after")
    def _known_sampler(self) -> Self:
        if self.sampler not in (UNIFORM, DIFFICULTY) and not is_import_path(self.sampler):
            raise ValueError(
                f"task_selection.sampler: {self.sampler!r} is not known: take {UNIFORM}, {DIFFICULTY}, or "
                "module:function of your own"
            )
        return self


class AirRule(BaseModel):
    """A reward for spans of the agent that match a pattern; a span that several rules match gets the sum."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(default="*", description="pattern of a span's name, with * and ?")
    attributes: dict[str, str] = Field(
        default={}, description="attributes that the span must have, as text; a value may be a pattern"
    )
    kind: SpanKind | None = Field(
        default=None, description="kind of the span in every instrumentation: tool, agent, …; none: any"
    )
    status: Literal["unset", "ok", "error"] | None = Field(default=None, description="status of the span; none: any")
    reward: float = Field(description="reward for the call before the span")


class CreditSettings(BaseModel):
    """Division of a rollout's outcome among its calls."""

    model_config = ConfigDict(extra="forbid")

    method: str = Field(
        default="identical",
        description="method that divides a rollout's reward among its calls: identical, last_call, discounted, "
        "reward_to_go, air, gigpo, compaction, or module:function of your own",
    )
    gamma: float = Field(default=1.0, ge=0, le=1, description="discount per call")
    gigpo_step_weight: float = Field(
        default=1.0, ge=0, description="weight of the advantage among calls of the same state, for method gigpo"
    )
    rules: list[AirRule] = Field(
        default=[AirRule(kind="tool", status="error", reward=-0.1)],
        description="rewards for spans, for method air",
    )

    @property
    def rules_in_force(self) -> list[AirRule]:
        """The rules, where the method asks for them."""
        return self.rules if self.method == "air" else []


class TaskSet(NamedTaskSource):
    """One of several sets of training tasks, and what holds for it instead of the learner's own settings."""

    weight: float = Field(
        default=1.0, gt=0, description="share of the groups that are of this set, beside those of the others"
    )
    agent: str | None = Field(
        default=None, description="name of the agent that runs the tasks of this set; none: the learner's"
    )
    group_size: int | None = Field(default=None, ge=1, description="rollouts per task of this set; none: the learner's")
    reward: str | None = Field(
        default=None, max_length=64, description="name of the reward that trains on this set; none: the learner's"
    )
    credit: CreditSettings | None = Field(
        default=None, description="division of rewards among the calls of this set; none: the learner's"
    )

    @field_validator("credit", mode="before")
    @classmethod
    def _credit_by_name(cls, value: Any) -> Any:
        return {"method": value} if isinstance(value, str) else value

    @property
    def overrides(self) -> dict[str, Any]:
        """The learner's settings that this set replaces."""
        fields = {name: getattr(self, name) for name in ("agent", "group_size", "reward", "credit")}
        return {name: value for name, value in fields.items() if value is not None}


def parse_task_sets(value: Any) -> Any:
    """Convert a list to the sets of tasks that it names, and a mapping to one source; raise ValueError."""
    if not isinstance(value, list):
        if not isinstance(value, str | Path | Mapping | TaskSource | None):
            raise ValueError(f"{value!r} is not a path, the fields of a source, or a list of sets")
        return parse_task_source(value)
    sets = [_parse_set(number, each) for number, each in enumerate(value, 1)]
    names = [each.name for each in sets if isinstance(each, TaskSet)]
    if len(names) < len(value) or not names:
        raise ValueError("a list of tasks has sets with `name` and `path`, at least one")
    if len(set(names)) < len(names):
        raise ValueError("two sets of tasks have the same name")
    return sets


def _parse_set(number: int, value: Any) -> Any:
    """Convert the fields of one set; raise ValueError that names the set, by its position if it has no name."""
    try:
        return parse_task_source(value, TaskSet)
    except ValueError as error:
        name = value.get("name") if isinstance(value, Mapping) else None
        raise ValueError(f"set {repr(name) if name else number}: {error}") from error


TasksSetting = Annotated[Path | TaskSource | list[TaskSet], BeforeValidator(parse_task_sets)]
"""The type of a setting: one source of tasks, or a list of sets."""


class RolloutCorrectionSettings(BaseModel):
    """verl's ``algorithm.rollout_correction``: what to do about tokens an older version sampled."""

    model_config = ConfigDict(extra="forbid")

    bypass_mode: bool = Field(
        default=True,
        description="take PPO's ratio against the policy that sampled the token, which clips how far a lagging batch "
        "can push; false: against the policy at the start of the step, times truncated importance weights",
    )
    rollout_is: Literal["token", "sequence"] | None = Field(
        default="token",
        description="level of the importance weights: token, or sequence, which is a call; not used by bypass_mode "
        "with ppo_clip",
    )
    loss_type: Literal["ppo_clip", "reinforce"] = Field(
        default="ppo_clip",
        description="loss under bypass_mode. ppo_clip: the policy loss; reinforce: importance-weighted REINFORCE",
    )
    rollout_is_threshold: float | str = Field(
        default=2.0,
        description="bound that truncates importance weights (TIS); 'low_high' zeroes weights outside it (IcePop)",
    )
    rollout_is_batch_normalize: bool = Field(
        default=False, description="scale the importance weights to mean 1 over the batch"
    )
    rollout_rs: str | None = Field(
        default=None,
        description="rejection rules: token_k1, token_k2, token_k3, seq_sum_k1, seq_mean_k3, seq_max_k2, …",
    )
    rollout_rs_threshold: float | str | None = Field(
        default=None,
        description="bounds of the rejection rules: for k1 those of the ratio, 'low_high' or one number for 1/high "
        "and high; else the largest value",
    )
    ess_bound: float = Field(
        default=0.3,
        ge=0,
        le=1,
        description="effective sample size, as a share, below which the learning rate is multiplied by ESS / ess_bound",
    )

    @model_validator(mode="after")
    def _bounds(self) -> Self:
        if self.rollout_rs is not None and self.rollout_rs_threshold is None:
            raise ValueError("rollout_rs needs rollout_rs_threshold: verl has no default for it")
        return self


class OverlongBufferSettings(BaseModel):
    """verl's ``overlong_buffer``: DAPO's soft punishment of answers that come near their limit."""

    model_config = ConfigDict(extra="forbid")

    max_response_length: int = Field(ge=1, description="longest answer in tokens: max_tokens of the calls")
    len: int = Field(ge=1, description="number of tokens before max_response_length over which the reward falls")
    penalty_factor: float = Field(default=1.0, ge=0, description="loss of reward at max_response_length")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.len > self.max_response_length:
            raise ValueError(
                f"overlong_buffer.len ({self.len}) is more than max_response_length ({self.max_response_length})"
            )
        return self


class AlgorithmSettings(BaseModel):
    """verl's ``algorithm``."""

    model_config = ConfigDict(extra="forbid")

    adv_estimator: str = Field(
        default="grpo",
        description="estimator of advantages, by verl's name: grpo, rloo, reinforce_plus_plus, "
        "reinforce_plus_plus_baseline, opo, gpg, grpo_passk, …; gae: PPO with a critic; or "
        "module:function of your own",
    )
    norm_adv_by_std_in_grpo: bool = Field(
        default=True, description="divide advantages by the group's standard deviation"
    )
    gamma: float = Field(default=1.0, ge=0, le=1, description="discount per token, for gae")
    lam: float = Field(default=1.0, ge=0, le=1, description="lambda of gae")
    overlong_filtering: bool = Field(
        default=False,
        description="exclude a rollout with a truncated answer (finish_reason length) from training, as DAPO does; "
        "its reward counts in its group",
    )
    overlong_buffer: OverlongBufferSettings | None = Field(
        default=None,
        description="reduce the reward of long answers before they are truncated, as DAPO does; none: do not",
    )
    rollout_correction: RolloutCorrectionSettings = RolloutCorrectionSettings()

    @property
    def min_group_size(self) -> int:
        """Valid rollouts a group needs: two where the estimator compares them; one of your own sees lone ones too."""
        return 1 if self.adv_estimator in GROUPLESS or is_import_path(self.adv_estimator) else 2

    @model_validator(mode="after")
    def _discounts(self) -> Self:
        is_own = is_import_path(self.adv_estimator)
        if self.adv_estimator != "gae" and not is_own and (self.gamma, self.lam) != (1.0, 1.0):
            raise ValueError(
                f"algorithm.gamma and lam are for gae: {self.adv_estimator!r} gives all tokens of a call the same "
                "advantage; credit.gamma discounts per call"
            )
        return self


class OptimSettings(BaseModel):
    """verl's ``actor.optim``."""

    model_config = ConfigDict(extra="forbid")

    lr: float = Field(default=1e-6, gt=0, description="learning rate")
    lr_scheduler_type: Literal["constant", "cosine"] = Field(
        default="constant", description="learning rate over the learner's steps"
    )
    min_lr_ratio: float = Field(
        default=0.0, ge=0, le=1, description="final learning rate of the cosine schedule, as a share of lr"
    )
    lr_warmup_steps: int = Field(default=0, ge=0, description="steps of linear warm-up of the learning rate")
    weight_decay: float = Field(default=0.0, ge=0, description="weight decay of AdamW")
    clip_grad: float = Field(default=1.0, gt=0, description="largest gradient norm")


class ActorSettings(BaseModel):
    """verl's ``actor``."""

    model_config = ConfigDict(extra="forbid")

    policy_loss: str = Field(
        default="vanilla",
        description="policy loss, by verl's name: vanilla (PPO), gspo, cispo, dppo_tv, dppo_kl, sapo, gpg, geo_mean, "
        "…; or module:function of your own",
    )
    policy_loss_options: dict[str, float] = Field(
        default={}, description="numbers of the chosen policy loss: dro_beta, clip_cov_ratio, …"
    )
    clip_ratio_low: float = Field(default=0.2, gt=0, description="PPO's ratio is clipped below at 1 - clip_ratio_low")
    clip_ratio_high: float = Field(
        default=0.28, gt=0, description="PPO's ratio is clipped above at 1 + clip_ratio_high"
    )
    loss_agg_mode: Literal["seq-mean-token-mean", "seq-mean-token-sum", "token-mean"] = Field(
        default="seq-mean-token-mean", description="averaging of tokens in the loss; a sequence is a whole rollout here"
    )
    use_kl_loss: bool = Field(default=False, description="add the KL divergence from the initial model to the loss")
    kl_loss_coef: float = Field(default=0.001, ge=0, description="weight of the KL divergence in the loss")
    kl_loss_type: Literal["kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3"] = Field(
        default="low_var_kl", description="estimator of the KL divergence"
    )
    entropy_coeff: float = Field(default=0.0, ge=0, description="weight of the entropy bonus")
    ppo_epochs: int = Field(default=1, ge=1, description="passes over a batch in one step")
    ppo_mini_batch_size: int | None = Field(
        default=None, ge=1, description="groups per optimiser step; none: the whole batch in one"
    )
    old_log_prob_interval: int = Field(
        default=10,
        ge=1,
        description="steps between two forward passes for metrics alone, such as the mismatch before the update; an "
        "update that needs the pass makes it in every step",
    )
    ppo_max_token_len_per_gpu: int = Field(
        default=16384, ge=64, description="most tokens per micro-batch, padding included; at least seq_len"
    )
    optim: OptimSettings = OptimSettings()


class CriticSettings(BaseModel):
    """verl's ``critic``, used by the estimator ``gae``: a value head on a copy of the model."""

    model_config = ConfigDict(extra="forbid")

    cliprange_value: float = Field(default=0.5, gt=0, description="largest change of a predicted value in one step")
    warmup: int = Field(
        default=0, ge=0, description="steps at the start that train the critic alone (verl: critic_warmup)"
    )
    optim: OptimSettings = OptimSettings(lr=1e-5)


class LoraSettings(BaseModel):
    """verl's LoRA switches: train adapters, publish adapters."""

    model_config = ConfigDict(extra="forbid")

    lora_rank: int = Field(default=0, ge=0, description="rank of the LoRA adapters; 0: train all weights")
    lora_alpha: int = Field(
        default=16, ge=1, description="LoRA scale: adapters are multiplied by lora_alpha / lora_rank"
    )
    target_modules: str | list[str] = Field(default="all-linear", description="modules that get LoRA adapters")
