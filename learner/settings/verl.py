"""Settings of verl that have no name of ours: a mapping for each of its dataclasses, which check it at the start."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


@dataclass(frozen=True, slots=True)
class OptimizerClass:
    """The class of an optimiser, and its module."""

    module: str
    name: str


class VerlSettings(BaseModel):
    """Fields of verl's configuration by verl's names, beside the settings above and below."""

    model_config = ConfigDict(extra="forbid")

    engine: dict[str, Any] = Field(
        default={},
        description="fields of verl's FSDPEngineConfig: reshard_after_forward, wrap_policy, use_torch_compile, …",
    )
    model: dict[str, Any] = Field(
        default={}, description="fields of verl's HFModelConfig: use_liger, external_lib, override_config, …"
    )
    actor: dict[str, Any] = Field(
        default={},
        description="fields of verl's FSDPActorConfig that policy losses read: clip_ratio_c, tau_pos, tau_neg",
    )
    optim: dict[str, Any] = Field(
        default={},
        description="fields of verl's FSDPOptimizerConfig for the trained model: optimizer, optimizer_impl, betas, "
        "override_optimizer_config, …",
    )
    critic_optim: dict[str, Any] = Field(default={}, description="fields of verl's FSDPOptimizerConfig for the critic")

    @property
    def optimizer(self) -> OptimizerClass:
        """The optimiser of the trained model."""
        return _choose_optimizer(self.optim)

    @property
    def optimizers(self) -> dict[str, OptimizerClass]:
        """The optimisers of the trained model and of the critic, by the setting that chooses each."""
        return {"verl.optim": self.optimizer, "verl.critic_optim": _choose_optimizer(self.critic_optim)}


def _choose_optimizer(fields: Mapping[str, Any]) -> OptimizerClass:
    """Return the optimiser that a mapping names; the default is torch's AdamW."""
    return OptimizerClass(str(fields.get("optimizer_impl", "torch.optim")), str(fields.get("optimizer", "AdamW")))
