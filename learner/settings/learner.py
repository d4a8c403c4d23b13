"""Settings of the learner. What verl calls by a name is called by that name here."""

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from common.role_settings import RoleSettings
from learner.settings.weights import WeightSettings
from schemas.semconv.span_kinds import SpanKind

NAME = r"^[A-Za-z0-9_-]{1,64}$"


class AirRule(BaseModel):
    """A reward for what a span of the agent says; a span that several rules fit gets the sum."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field("*", description="pattern of the span's name, with * and ?")
    attributes: dict[str, str] = Field({}, description="attributes it has, as text; a value may be a pattern")
    kind: SpanKind | None = Field(
        None, description="what it is, whoever instrumented the agent: tool, agent, …; none: any"
    )
    status: Literal["unset", "ok", "error"] | None = Field(None, description="its status; none: any")
    reward: float = Field(description="what the call before it gets")


class CreditSettings(BaseModel):
    """How a rollout's outcome is shared among its calls."""

    model_config = ConfigDict(extra="forbid")

    method: str = Field(
        "identical",
        description="identical, last_call, discounted, reward_to_go, air, gigpo, or module:function of your own",
    )
    gamma: float = Field(1.0, ge=0, le=1, description="discount per call")
    gigpo_step_weight: float = Field(
        1.0, ge=0, description="gigpo: weight of the advantage among calls of the same state"
    )
    rules: list[AirRule] = Field(
        [AirRule(kind="tool", status="error", reward=-0.1)],
        description="air: rewards for spans",
    )

    @property
    def rules_in_force(self) -> list[AirRule]:
        """The rules, where the method asks for them."""
        return self.rules if self.method == "air" else []


class RolloutCorrectionSettings(BaseModel):
    """verl's ``algorithm.rollout_correction``: what to do about tokens an older version sampled."""

    model_config = ConfigDict(extra="forbid")

    bypass_mode: bool = Field(
        True,
        description="PPO's ratio is taken against the policy that sampled the token, which clips how far a lagging "
        "batch can push; false: against the policy at the start of the step, times truncated importance weights",
    )
    rollout_is: Literal["token", "sequence"] | None = Field(
        "token",
        description="level of the importance weights: not used by bypass_mode with ppo_clip; a sequence is a call",
    )
    loss_type: Literal["ppo_clip", "reinforce"] = Field(
        "ppo_clip", description="bypass_mode: the policy loss, or importance-weighted REINFORCE"
    )
    rollout_is_threshold: float | str = Field(
        2.0, description="weights are truncated here (TIS); 'low_high' zeroes what is outside (IcePop)"
    )
    rollout_is_batch_normalize: bool = Field(False, description="weights have mean 1 over the batch")
    rollout_rs: str | None = Field(
        None, description="rejection rules: token_k1, token_k2, token_k3, seq_sum_k1, seq_mean_k3, seq_max_k2, …"
    )
    rollout_rs_threshold: float | str | None = Field(None, description="their bounds: 'low_high' for k1, else a number")
    ess_bound: float = Field(
        0.0, ge=0, le=1, description="below this effective sample size, as a share, a step counts ESS / ess_bound"
    )

    @model_validator(mode="after")
    def _bounds(self) -> Self:
        if self.rollout_rs is not None and self.rollout_rs_threshold is None:
            raise ValueError("rollout_rs needs rollout_rs_threshold: verl has no default for it")
        return self


class AlgorithmSettings(BaseModel):
    """verl's ``algorithm``."""

    model_config = ConfigDict(extra="forbid")

    adv_estimator: str = Field(
        "grpo",
        description="verl's name: grpo, rloo, reinforce_plus_plus, reinforce_plus_plus_baseline, opo, gpg, grpo_passk, "
        "…; gae: PPO with a critic",
    )
    norm_adv_by_std_in_grpo: bool = Field(True, description="divide by the group's standard deviation")
    gamma: float = Field(1.0, ge=0, le=1, description="gae, reinforce_plus_plus: discount per token")
    lam: float = Field(1.0, ge=0, le=1, description="gae: lambda")
    rollout_correction: RolloutCorrectionSettings = RolloutCorrectionSettings()


class OptimSettings(BaseModel):
    """verl's ``actor.optim``."""

    model_config = ConfigDict(extra="forbid")

    lr: float = Field(1e-6, gt=0, description="learning rate")
    lr_scheduler_type: Literal["constant", "cosine"] = Field("constant", description="over the learner's steps")
    min_lr_ratio: float = Field(0.0, ge=0, le=1, description="where the cosine ends, as a share of lr")
    lr_warmup_steps: int = Field(0, ge=0, description="steps of linear warm-up")
    weight_decay: float = Field(0.0, ge=0, description="AdamW's")
    betas: tuple[float, float] = Field((0.9, 0.99), description="AdamW's")
    clip_grad: float = Field(1.0, gt=0, description="largest gradient norm")


class ActorSettings(BaseModel):
    """verl's ``actor``."""

    model_config = ConfigDict(extra="forbid")

    policy_loss: str = Field(
        "vanilla", description="verl's name: vanilla (PPO), gspo, cispo, dppo_tv, dppo_kl, sapo, gpg, geo_mean, …"
    )
    policy_loss_options: dict[str, float] = Field({}, description="its own numbers: dro_beta, clip_cov_ratio, …")
    clip_ratio_low: float = Field(0.2, gt=0, description="PPO's ratio is clipped at 1 less this")
    clip_ratio_high: float = Field(0.28, gt=0, description="and at 1 plus this")
    clip_ratio_c: float = Field(3.0, gt=1, description="of tokens with negative advantage: dual-clip PPO's bound")
    loss_agg_mode: Literal["seq-mean-token-mean", "seq-mean-token-sum", "token-mean"] = Field(
        "seq-mean-token-mean", description="how tokens are averaged; here a sequence is a whole rollout"
    )
    use_kl_loss: bool = Field(False, description="add the KL divergence to the model at the start")
    kl_loss_coef: float = Field(0.001, ge=0, description="its weight")
    kl_loss_type: Literal["kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3"] = Field(
        "low_var_kl", description="how it is estimated"
    )
    entropy_coeff: float = Field(0.0, ge=0, description="weight of the entropy bonus")
    ppo_epochs: int = Field(1, ge=1, description="passes over a batch")
    ppo_mini_batch_size: int | None = Field(
        None, ge=1, description="groups per optimiser step; none: the whole batch in one"
    )
    ppo_max_token_len_per_gpu: int = Field(16384, ge=64, description="tokens per micro-batch")
    optim: OptimSettings = OptimSettings()


class CriticSettings(BaseModel):
    """verl's ``critic``, used by the estimator ``gae``: a value head on a copy of the model."""

    model_config = ConfigDict(extra="forbid")

    cliprange_value: float = Field(0.5, gt=0, description="how far a value may move from what it was in one step")
    warmup: int = Field(0, ge=0, description="steps that train the critic alone (verl: critic_warmup)")
    optim: OptimSettings = OptimSettings(lr=1e-5)


class LoraSettings(BaseModel):
    """verl's LoRA switches: train adapters, publish adapters."""

    model_config = ConfigDict(extra="forbid")

    lora_rank: int = Field(0, ge=0, description="0: train all weights")
    lora_alpha: int = Field(16, ge=1, description="adapters are scaled by lora_alpha / lora_rank")
    target_modules: str | list[str] = Field("all-linear", description="modules that get adapters")


class StalenessSettings(BaseModel):
    """What is done about `max_staleness`: before a task goes out, when a group is taken, and in the batch."""

    model_config = ConfigDict(extra="forbid")

    admission: Literal["bounded", "unbounded"] = Field(
        "bounded", description="bounded: dispatch no more tasks than max_staleness allows"
    )
    order: Literal["ready_first", "dispatch"] = Field(
        "ready_first", description="train groups as they end, or in the order of dispatch, which waits for the slowest"
    )
    on_exceed: Literal["drop", "mask", "keep"] = Field(
        "drop", description="a rollout with tokens beyond max_staleness: drop it, mask those tokens, or train on it"
    )


class LearnerSettings(RoleSettings):
    """One learner: which model it trains, on which tasks, how, and how far behind a rollout may be."""

    run: str = Field("run", description="name of the run; only its rollouts are used", pattern=NAME)
    model_path: Path = Field(description="Hugging Face model directory to start from")
    model: str = Field("policy", description="name the versions are published under", pattern=NAME)
    tasks: Path | None = Field(
        None, description="JSONL of training tasks to dispatch; none: others publish them, with this run's name"
    )
    agent: str = Field("default", description="agent the tasks are for", pattern=NAME)
    group_size: int = Field(8, ge=2, description="rollouts per task: GRPO's group (verl: rollout.n)")
    groups_per_step: int = Field(16, ge=1, description="groups per training step (verl: train_batch_size)")
    max_steps: int = Field(100, ge=0, description="training steps; 0 publishes the first version and ends")
    max_staleness: int = Field(2, ge=0, description="most versions a token may lag behind the one being trained")
    rollout_timeout_seconds: float = Field(60.0, gt=0, description="seconds a rollout may take")
    max_attempts: int = Field(3, ge=1, description="times a rollout is tried when something of ours fails")
    group_timeout_seconds: float = Field(
        120.0, gt=0, description="seconds a group waits for its last rollouts after the first one ended"
    )
    sampling_params: dict[str, Any] = Field({"temperature": 1.0}, description="sampling settings of training rollouts")
    failed_rollouts: Literal["mask", "zero"] = Field(
        "mask", description="an agent that raised or ran out of time: left out, or reward 0"
    )
    train_roles: list[str] = Field([], description="roles to train (the part after ':' in the model name); none: all")
    credit: CreditSettings = CreditSettings()
    sequence_mode: Literal["trajectory", "transition"] = Field(
        "trajectory", description="calls that extend each other share a sequence, or each call has its own"
    )
    seq_len: int = Field(8192, ge=16, description="longest prompt plus response that is trained on")
    overlong: Literal["mask", "split"] = Field(
        "mask", description="a longer call is left out, or trained in windows with less context"
    )
    staleness: StalenessSettings = StalenessSettings()
    seed: int = Field(0, description="order of the tasks, and what is random in training")
    id: str | None = Field(None, description="name of this learner; default: host-pid", pattern=NAME)
    cpu_threads: int | None = Field(None, gt=0, description="CPU threads; default: torch's own choice")
    checkpoint_dir: Path = Field(Path("runs/checkpoints"), description="directory of checkpoints")
    disk_free_mib: int = Field(
        1024, ge=0, description="MiB free on the checkpoints' disk below which there is an alarm"
    )
    weight_sync_interval: int = Field(1, ge=1, description="steps between weight versions")
    checkpoint_interval: int | None = Field(
        None, ge=1, description="steps between checkpoints, a multiple of weight_sync_interval; none: as often as that"
    )
    rollout_bytes: int | None = Field(
        None,
        ge=1,
        description="bytes a rollout takes on the bus, to check its sizes; none: of seq_len",
    )
    keep_last_checkpoints: int = Field(
        2, ge=1, description="checkpoints kept; a step is replayed from the one before it"
    )
    keep_weight_versions: int = Field(
        4, ge=1, description="weight versions kept for nodes to fetch, with those that the deltas among them build on"
    )
    weights: WeightSettings = WeightSettings()
    algorithm: AlgorithmSettings = AlgorithmSettings()
    actor: ActorSettings = ActorSettings()
    critic: CriticSettings = CriticSettings()
    lora: LoraSettings = LoraSettings()

    @field_validator("credit", mode="before")
    @classmethod
    def _credit_by_name(cls, value: Any) -> Any:
        return {"method": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _temperature(self) -> Self:
        temperature = self.sampling_params.get("temperature", 1.0)
        if not isinstance(temperature, int | float) or temperature <= 0:
            raise ValueError("sampling.temperature must be above 0: a greedy group has no advantage")
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
