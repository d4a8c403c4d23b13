"""Settings of the learner. What verl calls by a name is called by that name here."""

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

NAME = r"^[A-Za-z0-9_-]{1,64}$"


class RolloutCorrectionSettings(BaseModel):
    """verl's ``algorithm.rollout_correction``: what to do about tokens an older version sampled."""

    model_config = ConfigDict(extra="forbid")

    bypass_mode: bool = Field(
        True,
        description="PPO's ratio is taken against the policy that sampled the token, which clips how far a lagging "
        "batch can push; false: against the policy at the start of the step, times truncated importance weights",
    )
    rollout_is: Literal["token", "sequence"] | None = Field(
        "token", description="level of the importance weights; used when bypass_mode is false"
    )
    rollout_is_threshold: float | str = Field(2.0, description="weights are cut here; 'low_high' zeroes outside")
    rollout_rs: str | None = Field(None, description="rejection rules, e.g. token_k1, seq_mean_k1")
    rollout_rs_threshold: float | str | None = Field(None, description="their bounds")


class AlgorithmSettings(BaseModel):
    """verl's ``algorithm``."""

    model_config = ConfigDict(extra="forbid")

    adv_estimator: Literal["grpo"] = Field("grpo", description="advantage estimator")
    norm_adv_by_std_in_grpo: bool = Field(True, description="divide by the group's standard deviation")
    rollout_correction: RolloutCorrectionSettings = RolloutCorrectionSettings()


class OptimSettings(BaseModel):
    """verl's ``actor.optim``."""

    model_config = ConfigDict(extra="forbid")

    lr: float = Field(1e-6, gt=0, description="learning rate")
    lr_scheduler_type: Literal["constant", "cosine"] = Field("constant", description="over the learner's steps")
    min_lr_ratio: float = Field(0.0, ge=0, le=1, description="where the cosine ends, as a share of lr")
    lr_warmup_steps: int = Field(0, ge=0, description="steps of linear warm-up")
    weight_decay: float = Field(0.0, ge=0)
    betas: tuple[float, float] = (0.9, 0.99)
    clip_grad: float = Field(1.0, gt=0, description="largest gradient norm")


class ActorSettings(BaseModel):
    """verl's ``actor``."""

    model_config = ConfigDict(extra="forbid")

    policy_loss: str = Field("vanilla", description="name of a registered policy loss")
    clip_ratio_low: float = Field(0.2, gt=0)
    clip_ratio_high: float = Field(0.28, gt=0)
    clip_ratio_c: float = Field(3.0, gt=1)
    loss_agg_mode: Literal["seq-mean-token-mean", "seq-mean-token-sum", "token-mean"] = Field(
        "seq-mean-token-mean", description="how tokens are averaged; here a sequence is a whole rollout"
    )
    ppo_epochs: int = Field(1, ge=1)
    ppo_max_token_len_per_gpu: int = Field(16384, ge=64, description="tokens per micro-batch")
    optim: OptimSettings = OptimSettings()


class LearnerSettings(BaseModel):
    """One learner: which model it trains, on which tasks, how, and how far behind a rollout may be."""

    model_config = ConfigDict(extra="forbid")

    run: str = Field("run", description="name of the run; only its rollouts are used", pattern=NAME)
    model_path: Path = Field(description="Hugging Face model directory to start from")
    model: str = Field("policy", description="name the versions are published under", pattern=NAME)
    tasks: Path | None = Field(
        None, description="JSONL of training tasks to dispatch; none: others publish them, with this run's name"
    )
    agent: str = Field("default", description="agent the tasks are for", pattern=NAME)
    samples: int = Field(8, ge=2, description="rollouts per task: GRPO's group (verl: rollout.n)")
    groups_per_step: int = Field(16, ge=1, description="groups per training step (verl: train_batch_size)")
    steps: int = Field(100, ge=0, description="training steps; 0 publishes the first version and ends")
    max_staleness: int = Field(2, ge=0, description="most versions a token may lag behind the one being trained")
    deadline: float = Field(60.0, gt=0, description="seconds a rollout may take")
    max_attempts: int = Field(3, ge=1, description="times a rollout is tried when something of ours fails")
    group_seconds: float = Field(
        120.0, gt=0, description="seconds a group waits for its last rollouts after the first one ended"
    )
    sampling: dict[str, Any] = Field({"temperature": 1.0}, description="sampling settings of training rollouts")
    failed_rollouts: Literal["mask", "zero"] = Field(
        "mask", description="an agent that raised or ran out of time: left out, or reward 0"
    )
    train_roles: list[str] = Field([], description="roles to train (the part after ':' in the model name); none: all")
    credit: str = Field("identical", description="how a rollout's reward is shared among its calls")
    max_row_tokens: int = Field(8192, ge=16, description="longest prompt plus response that is trained on")
    seed: int = 0
    id: str | None = Field(None, description="name of this learner; default: host-pid", pattern=NAME)
    threads: int | None = Field(None, gt=0, description="CPU threads; default: torch's own choice")
    checkpoints: Path = Field(Path("runs/checkpoints"), description="directory of checkpoints")
    checkpoint_every: int = Field(1, ge=1, description="steps between checkpoints")
    keep_versions: int = Field(4, ge=1, description="weight versions kept on the bus")
    algorithm: AlgorithmSettings = AlgorithmSettings()
    actor: ActorSettings = ActorSettings()

    @model_validator(mode="after")
    def _temperature(self) -> Self:
        temperature = self.sampling.get("temperature", 1.0)
        if not isinstance(temperature, int | float) or temperature <= 0:
            raise ValueError("sampling.temperature must be above 0: a greedy group has no advantage")
        return self
