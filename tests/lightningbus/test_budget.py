"""What a training job may take, and when that is spent."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from lightningbus.common.token_price import TokenPrice
from lightningbus.run.settings.budget import BudgetSettings
from lightningbus.run.settings.run_file import RunSettings


def test_machines_cost_money() -> None:
    budget = BudgetSettings(cost=10, num_gpus=4, gpu_hour_price=2.5, hour_price=1)
    assert budget.price_per_hour == 11
    assert budget.compute_cost(1800) == 5.5
    assert budget.find_overrun(1800, 6) == ""
    assert budget.find_overrun(3600, 11.5) == "11.5 of 10 is spent (budget.cost)"


def test_hours_end_it_without_any_price() -> None:
    budget = BudgetSettings(hours=0.5)
    assert budget.find_overrun(1799, 0) == ""
    assert budget.find_overrun(1800, 0) == "0.5 hours of 0.5 are over (budget.hours)"


@pytest.mark.parametrize(
    "fields", [{}, {"num_gpus": 2}, {"hours": 0}, {"cost": -1}, {"hours": 1, "gpu_hour_price": -1}]
)
def test_a_budget_without_a_limit_or_a_price_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        BudgetSettings.model_validate(fields)


def test_money_needs_a_price() -> None:
    fields = {"budget": {"cost": 5}}
    with pytest.raises(ValidationError, match=r"budget\.cost needs a price"):
        RunSettings.model_validate(fields)
    judge = {"url": "http://127.0.0.1:1/v1", "model": "j", "rubric": "good", "price": {"input": 0, "output": 2}}
    RunSettings.model_validate(fields | {"grader": {"graders": {"j": {"judge": judge}}}})
    RunSettings.model_validate({"runs": Path("runs"), "budget": {"cost": 5, "hour_price": 1}})
    runner = {"entrypoint": "agent:solve", "model_prices": {"gpt-*": {"input": 1, "output": 0}}}
    RunSettings.model_validate(fields | {"runners": [runner]})
    free = runner | {"model_prices": {"gpt-*": {"input": 0, "output": 0}}}
    with pytest.raises(ValidationError, match=r"budget\.cost needs a price"):
        RunSettings.model_validate(fields | {"runners": [free]})


@pytest.mark.parametrize("price", [float("inf"), float("nan"), -1])
def test_a_price_is_a_number(price: float) -> None:
    with pytest.raises(ValidationError):
        TokenPrice(input=price, output=1)
