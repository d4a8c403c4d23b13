"""The model of sizes: what must hold of any costs, and that its page is what was measured."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.results import read, table
from benchmarks.sizing.__main__ import PAGE, RATE, TOOK, costs_of, render_answer
from benchmarks.sizing.measure import SHAPES, fitted, rollout
from benchmarks.sizing.model import Costs, Fit, Load, Plant, Run, full_at, residence, simulate, stations
from lightningbus.schemas.codec import encode

COSTS = Costs(
    bus_bytes=Fit(400, 1100, 17), disk_bytes=Fit(300, 100, 7), store_seconds=Fit(4e-4, 2.5e-4, 1e-6),
    broker_rollout=1e-4, broker_byte=1e-8, waiting_runner=1e-6, heartbeat_delivery=1e-6, beat=3e-6,
    runner_rollout=0.0, runner_turn=0.01,
)  # fmt: skip
LOAD = Load(tasks=4000, runners=100, slots=4, turns=3, tool_seconds=2.0, response_tokens=120)
PLENTY = Plant(nodes=1000, learner_gpus=1000)


def test_with_plenty_of_everything_a_rollout_takes_what_its_turns_take() -> None:
    run = simulate(LOAD, PLENTY, COSTS, step=0.25)
    assert run.steady == pytest.approx(400 / residence(LOAD, PLENTY), rel=0.1)
    alike = simulate(replace(LOAD, tasks=400), PLENTY, COSTS, step=0.05, spread=False)
    assert alike.took == pytest.approx(residence(LOAD, PLENTY), rel=0.05)


@pytest.mark.parametrize(
    ("plant", "costs", "fullest", "rate"),
    [
        (replace(PLENTY, nodes=1, node_tokens=3600), COSTS, "nodes", 10.0),
        (replace(PLENTY, learner_gpus=1, gpu_tokens=10 * LOAD.tokens), COSTS, "learner", 10.0),
        (PLENTY, replace(COSTS, broker_rollout=0.8 - 1000 * 100 * 1e-7), "broker: all", 8 / 0.8),
    ],
    ids=["nodes", "learner", "broker"],
)
def test_what_is_full_is_what_the_rate_comes_to(plant: Plant, costs: Costs, fullest: str, rate: float) -> None:
    run = simulate(replace(LOAD, tasks=1500), replace(plant, ahead=500), costs, step=0.5)
    assert run.steady == pytest.approx(rate, rel=0.12)
    request = stations(LOAD, plant, costs, run.steady)
    assert request[0].name.startswith(fullest.split(":")[0]) and request[0].share == pytest.approx(1, rel=0.15)


def test_a_store_that_is_behind_fills_the_stream_and_then_holds_everybody() -> None:
    size = COSTS.bus_bytes.of(LOAD)
    plant = replace(PLENTY, ingesters=1, span_bytes=200 * size)
    slow = replace(COSTS, store_seconds=Fit(0.2, 0, 0))  # ten a second with two cores
    run = simulate(replace(LOAD, tasks=1500), plant, slow, step=0.5)
    assert max(run.unread) <= 200 * size * 1.01 and max(run.unread) > 150 * size
    assert run.steady == pytest.approx(10, rel=0.1)


def test_heartbeats_to_every_runner_grow_with_the_square_and_work_does_not() -> None:
    plant = Plant()
    of = {
        count: {
            station.name: station.demand
            for station in stations(replace(LOAD, runners=count), replace(plant, nodes=count), COSTS, 1.0)
        }
        for count in (1000, 2000)
    }
    assert of[2000]["broker: heartbeats"] / of[1000]["broker: heartbeats"] == pytest.approx(4, rel=0.05)
    assert of[2000]["store: inserts"] == of[1000]["store: inserts"]
    assert full_at(LOAD, plant, COSTS, "broker: heartbeats") < full_at(LOAD, plant, COSTS, "store: heartbeats")


def test_a_fit_finds_what_the_figures_were_made_of() -> None:
    fit = Fit(500.0, 40.0, 7.0)
    values = [fit.rollout + fit.turn * turns + fit.token * turns * tokens for turns, tokens in SHAPES]
    actual = fitted(values)
    assert (actual.rollout, actual.turn, actual.token) == pytest.approx((500, 40, 7))


def test_bytes_on_the_bus_are_those_of_what_is_encoded() -> None:
    costs = costs_of(read("sizing"))
    turns, tokens = 16, 250  # a shape the fit has not seen
    real = sum(len(encode(batch)) for batch in rollout("seen", (turns, tokens), 1))
    load = Load(turns=turns, prompt_tokens=tokens * 3 / 5, response_tokens=tokens * 2 / 5)
    assert costs.bus_bytes.of(load) == pytest.approx(real, rel=0.15)


def test_the_page_is_what_was_measured_and_simulated() -> None:
    page = PAGE.read_text()
    assert page.split("<!-- sizing costs: begin -->\n")[1].split("\n<!-- sizing costs: end -->")[0] == table(
        read("sizing")
    )
    displayed = page.split("<!-- sizing run: begin -->\n")[1].split("\n<!-- sizing run: end -->")[0]
    by_name = {item["case"]: float(str(item["value"])) for item in read("sizing")}
    run = Run(1.0, took=by_name[TOOK], rate=[by_name[RATE]])
    assert displayed == render_answer(Load(), Plant(), costs_of(read("sizing")), run)
    assert Path(PAGE.with_name("sizing.png")).exists()
