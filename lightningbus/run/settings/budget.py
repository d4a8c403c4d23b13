"""Settings of what a training job may take: the section ``budget`` of a run file."""

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

HOUR_SECONDS = 3600.0


class BudgetSettings(BaseModel):
    """Time and money of a job, all its starts together; training ends once either is spent."""

    model_config = ConfigDict(extra="forbid")

    hours: float | None = Field(default=None, gt=0, description="hours after which training ends; none: no limit")
    cost: float | None = Field(
        default=None, gt=0, description="money after which training ends, in the currency of the prices; none: no limit"
    )
    num_gpus: int = Field(default=1, ge=0, description="GPUs that are paid for while the job runs, on all machines")
    gpu_hour_price: float = Field(default=0.0, ge=0, description="price of one GPU for an hour")
    hour_price: float = Field(
        default=0.0, ge=0, description="price of everything else for an hour: CPUs, storage, network"
    )

    @model_validator(mode="after")
    def _limits(self) -> Self:
        if self.hours is None and self.cost is None and not self.price_per_hour:
            raise ValueError("give hours or cost, which end training, or a price, for what the job costs")
        return self

    @property
    def price_per_hour(self) -> float:
        """Price of the machines for an hour."""
        return self.num_gpus * self.gpu_hour_price + self.hour_price

    def compute_cost(self, seconds: float) -> float:
        """Compute what the machines of a job of so many seconds cost."""
        return seconds / HOUR_SECONDS * self.price_per_hour

    def find_overrun(self, seconds: float, cost: float) -> str:
        """Return the reason for which training ends after so many seconds and at such a cost; empty: none."""
        if self.hours is not None and seconds >= self.hours * HOUR_SECONDS:
            return f"{seconds / HOUR_SECONDS:.3g} hours of {self.hours:g} are over (budget.hours)"
        if self.cost is not None and cost >= self.cost:
            return f"{cost:.4g} of {self.cost:g} is spent (budget.cost)"
        return ""
