"""Settings of the auditor."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from lightningbus.common.role_settings import KvCachePolicy, ModelRoleSettings


class AuditorSettings(ModelRoleSettings):
    """Share of the rollouts that is recomputed, and the difference that counts as a fault."""

    model_path: Path = Field(
        description="model directory: architecture; the weights come from the bus, unless `frozen`"
    )
    model: str = Field(
        default="policy", description="name of the model that is audited", pattern=r"^[A-Za-z0-9_-]{1,64}$"
    )
    frozen: bool = Field(
        default=False,
        description="audit the weights in `model_path` as version 0, as the nodes' setting of the same name",
    )
    id: str | None = Field(
        default=None, description="name of this process; default: host-pid", pattern=r"^[A-Za-z0-9_-]{1,64}$"
    )
    share: float = Field(
        default=0.01, ge=0, le=1, description="share of rollouts that are audited; the first of each version always is"
    )
    max_cpu_share: float = Field(
        default=0.03,
        gt=0,
        le=1,
        description="largest share of this machine's CPU time spent on audits; further rollouts are skipped",
    )
    cpu_threads: int = Field(default=1, gt=0, description="CPU threads of the recomputation")
    device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto", description="device that recomputes; auto: a GPU if there is one"
    )
    engine_dtype: str = Field(
        default="auto",
        description="number format in which nodes compute, their `dtype`; auto: that of the model's config",
    )
    tolerance: float | None = Field(
        default=None,
        gt=0,
        description="largest difference of a token's log-probability that counts as equal, in nats; default: the "
        "rounding error, 0.01 for float32, else 0.25",
    )
    differing_share: float = Field(
        default=0.02,
        gt=0,
        lt=1,
        description="share of a sound engine's tokens that may differ by more than the tolerance",
    )
    false_alarm_rate: float = Field(
        default=1e-9, gt=0, lt=1, description="most false alarms per audited token of a sound engine"
    )
    kv_cache_on_swap: KvCachePolicy = Field(
        default="auto",
        description="the nodes' setting of the same name; with auto and keep only tokens before a swap can be audited",
    )
    work_dir: Path = Field(default=Path("runs/auditor"), description="directory for fetched weights")
