"""External model calls in the store: by model in the report, on the page, and in the cost that a budget bounds."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lightningbus.run.machine.hardware import read_hardware
from lightningbus.run.results.results import Results
from lightningbus.run.settings.budget import BudgetSettings
from lightningbus.run.settings.run_file import RunSettings
from lightningbus.runners.recording.attempt import AttemptRecorder
from lightningbus.store.reports import REPORTS
from lightningbus.store.ui import progress
from tests import seed_store
from tests.runners.conftest import task
from tests.runners.test_external_cost import PRICES, span
from tests.store.conftest import StoreProcess, prepared


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreProcess]:
    """A store with two attempts at a rollout: both have cost money."""
    with prepared(tmp_path_factory.mktemp("store")) as built:
        for number, outcome in enumerate(("infra_error", "ok"), 1):
            recorder = AttemptRecorder(task(run_id="mine"), number, "runner", number, number, model_prices=PRICES)
            recorder.add(span(1, model="gpt-4o-mini", tokens=(1_000_000, 500_000), id=f"chatcmpl-{number}"))
            recorder.add(span(2, model="claude", tokens=(10, 20)))
            recorder.finish(outcome, 1.0, "", "null", final=outcome == "ok")  # type: ignore[arg-type]
            for _ in range(2):  # a batch that is written twice counts once
                seed_store.insert(built.sql, recorder.outbox, first=10 * number)
        seed_store.insert(built.sql, seed_store.external_attempt("unpriced"), first=100)
        yield built


def test_the_report_has_cost_and_unpriced_calls_by_model(store: StoreProcess) -> None:
    report = REPORTS["external_calls"]
    rows = store.sql.query(report.query("lightningbus"), parameters=report.values({}, "mine")).named_results()
    names = ("model", "num_calls", "prompt_tokens", "response_tokens", "num_unpriced_calls", "cost")
    assert [tuple(row[name] for name in names) for row in rows] == [
        ("gpt-4o-mini", 2, 2_000_000, 1_000_000, 0, 3.0),
        ("claude", 2, 20, 40, 2, 0.0),
    ]


def test_the_page_has_the_cost_and_what_it_leaves_out(store: StoreProcess) -> None:
    (row,) = store.sql.query(progress.COST, parameters={"run_id": "mine"}).named_results()
    assert row == {"cost": 3.0, "num_unpriced_calls": 2}
    for run, num_unpriced in (("unpriced", 1), ("none", 0)):
        (row,) = store.sql.query(progress.COST, parameters={"run_id": run}).named_results()
        assert row == {"cost": None, "num_unpriced_calls": num_unpriced}, "no price is no cost of 0"


def test_a_budget_is_spent_by_them(store: StoreProcess, tmp_path: Path) -> None:
    results = Results(
        run="mine",
        model="policy",
        model_path=tmp_path,
        settings_sha256="",
        seed=0,
        max_steps=1,
        perfect_reward=1.0,
        hardware=read_hardware(),
        packages={},
    )
    results.count_cost(store.sql, RunSettings())
    assert (results.cost, results.num_unpriced_calls) == (None, 2), "no prices, and no budget either"
    budget = BudgetSettings(cost=3, hour_price=1)
    results.count_cost(store.sql, RunSettings(budget=budget))
    assert (results.cost, results.num_unpriced_calls) == (3.0, 2)
    assert budget.find_overrun(0, results.cost or 0.0) == "3 of 3 is spent (budget.cost)"
