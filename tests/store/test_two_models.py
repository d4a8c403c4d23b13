"""A run that trains two models: every figure is of one of them, counted another way from the events."""

import asyncio
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import mean
from typing import Any

import aiohttp
import pytest

from lightningbus.api.sessions.reward_curve import RewardCurve
from lightningbus.run.evaluation.request import SAMPLINGS
from lightningbus.run.results.model_results import count_models, read_evaluations
from lightningbus.schemas.spans import SpanBatch
from lightningbus.schemas.training import TrainingStep
from lightningbus.store.clickhouse.client import connect_readonly
from lightningbus.store.clickhouse.query_limits import UI
from lightningbus.store.reports import REPORTS
from lightningbus.store.reports.compared_runs import COMPARISONS
from lightningbus.store.ui.client import Reader
from lightningbus.store.ui.server import UiServer, serve
from lightningbus.trackers.store_points import PointReader
from tests import seed_store
from tests.polling import HANG_SECONDS
from tests.store.conftest import StoreProcess, prepared

RUN, STEPS = "pair", 6
WRITER, CHECKER = seed_store.MODELS


@pytest.fixture(scope="module")
def events() -> list[Any]:
    return list(seed_store.run_of_two(RUN, steps=STEPS, seed=4))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, events: list[Any]) -> Iterator[StoreProcess]:
    with prepared(tmp_path_factory.mktemp("store")) as built:
        seed_store.insert(built.sql, events)
        yield built


@pytest.fixture(scope="module")
def ends(events: list[Any]) -> list[SpanBatch]:
    return [event for event in events if isinstance(event, SpanBatch) and event.end is not None]


def steps_of(events: Sequence[Any], model: str) -> list[TrainingStep]:
    return [event for event in events if isinstance(event, TrainingStep) and event.model == model]


def ask(store: StoreProcess, name: str, **fields: str) -> dict[str, list[dict[str, Any]]]:
    """A report's rows by model."""
    report = REPORTS[name]
    rows = store.sql.query(report.query("lightningbus"), parameters=report.values(fields, RUN)).named_results()
    by_model: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_model[row["model"]].append(row)
    return dict(by_model)


def rewards(ends: Sequence[SpanBatch], model: str) -> dict[int, list[float]]:
    """Rewards of a model by its version: the writer's are the main ones, the checker's those of its name."""
    by_version: dict[int, list[float]] = defaultdict(list)
    for batch in ends:
        assert batch.end is not None
        value = batch.end.reward if model == WRITER else batch.end.rewards.get(model)
        if value is not None and model in batch.end.usage.newest_versions:
            by_version[batch.end.usage.newest_versions[model]].append(value)
    return by_version


def test_each_model_has_a_curve_of_the_reward_it_is_trained_on(store: StoreProcess, ends: list[SpanBatch]) -> None:
    by_model = ask(store, "reward_by_version")
    assert by_model.keys() == {WRITER, CHECKER}
    for model, rows in by_model.items():
        expected = rewards(ends, model)
        assert {row["version"]: row["rollouts"] for row in rows} == {
            version: len(values) for version, values in expected.items()
        }
        for row in rows:
            assert row["mean_reward"] == pytest.approx(mean(expected[row["version"]])), (model, row["version"])
    curve = RewardCurve.load(store.sql, RUN)
    assert [row["version"] for row in curve.training if row["model"] == CHECKER] == [0, 1, 2]
    pytest.importorskip("matplotlib")
    assert curve.plot().get_legend_handles_labels()[1] == [f"training, {CHECKER}", f"training, {WRITER}"]


def test_training_reports_count_the_calls_and_versions_of_their_model(store: StoreProcess, events: list[Any]) -> None:
    for model, num_steps in ((WRITER, STEPS), (CHECKER, STEPS // 2)):
        steps = steps_of(events, model)
        assert [row["step"] for row in ask(store, "drift")[model]] == list(range(1, num_steps + 1))
        staleness = ask(store, "staleness")[model]
        assert [row["tokens"] for row in staleness] == [
            sum(use.tokens for use in step.rollouts if use.trained) for step in steps
        ]
        assert max(row["max_staleness"] for row in staleness) <= 1, "versions of the other model are not counted"
        credit = ask(store, "credit_by_call")[model]
        assert {(row["role"], row["call"]) for row in credit} == (
            {("writer", 0), ("writer", 2)} if model == WRITER else {("checker", 1)}
        )
        num_trained = sum(use.trained for step in steps for use in step.rollouts)
        durations = [row for row in ask(store, "fairness")[model] if row["kind"] == "duration"]
        assert sum(row["trained"] for row in durations) == num_trained
        assert [row["version"] for row in ask(store, "swaps")[model]] == list(range(1, num_steps + 1))
        assert [row["version"] for row in ask(store, "pass_at_k")[model]] == list(range(num_steps))
        assert ask(store, "improved_tasks")[model]


def test_a_token_has_the_advantage_that_its_own_model_was_trained_with(store: StoreProcess, events: list[Any]) -> None:
    uses = {
        model: {use.rollout_id: use for step in steps_of(events, model) for use in step.rollouts}
        for model in seed_store.MODELS
    }
    rollout = next(name for name, use in uses[CHECKER].items() if use.trained)
    by_model = ask(store, "token_credit", rollout_id=rollout)
    assert {model: len(rows) for model, rows in by_model.items()} == {WRITER: 20, CHECKER: 10}
    for model, rows in by_model.items():
        assert {row["advantage"] for row in rows} == {uses[model][rollout].advantage}, model


def test_two_versions_of_a_chosen_model_are_compared(store: StoreProcess, ends: list[SpanBatch]) -> None:
    report = REPORTS["compare"]
    fields = {"a": RUN, "b": RUN, "version_a": "0", "version_b": "2", "model": CHECKER}
    rows = store.sql.query(report.query("lightningbus"), parameters=report.values(fields, "")).named_results()
    (rollouts,) = (row for row in rows if row["figure"] == "rollouts")
    of_version = [batch.end.usage.newest_versions.get(CHECKER) for batch in ends if batch.end is not None]
    assert (rollouts["a"], rollouts["b"]) == (of_version.count(0), of_version.count(2))


def test_results_have_figures_of_each_model(store: StoreProcess, events: list[Any]) -> None:
    counted = count_models(store.sql, RUN, SAMPLINGS)
    assert list(counted) == sorted(seed_store.MODELS)
    for model, figures in counted.items():
        steps = steps_of(events, model)
        uses = [use for step in steps for use in step.rollouts]
        assert figures.weight_versions == len(steps) + 1
        assert figures.tokens_trained == sum(use.tokens for use in uses if use.trained)
        assert figures.share_trained == pytest.approx(sum(use.trained for use in uses) / len(uses), abs=1e-4)
        assert figures.max_staleness in (0, 1)


def test_trackers_get_series_of_each_model(store: StoreProcess, events: list[Any]) -> None:
    reader = PointReader(RUN, max_staleness=1, models=seed_store.MODELS)
    list(reader.read(store.sql, is_over=True))
    points = {point.key: point for point in reader.read(store.sql, is_over=True)}
    for model in seed_store.MODELS:
        for step in steps_of(events, model):
            named = {f"{model}/{name}": value for name, value in step.metrics.items()}
            assert points[f"step/{model}/{step.step}"].metrics == named
        point = points[f"reward_by_version/{model}/train/0"]
        assert f"reward_by_version/{model}/train/mean_reward" in point.metrics
    later = reader.read(store.sql, is_over=False, last_steps={WRITER: 5, CHECKER: 2})
    assert sorted(point.key for point in later if point.axis == "step") == [
        f"step/{CHECKER}/3", *(f"step/{WRITER}/{step}" for step in range(3, 7))
    ], "the slower model decides where reading goes on; the journal leaves out what is known"  # fmt: skip


async def test_the_page_asks_for_one_model_at_a_time(store: StoreProcess, events: list[Any]) -> None:
    reader = Reader(await asyncio.to_thread(connect_readonly, store.url, limits=UI))
    async with (
        serve(UiServer(reader, "127.0.0.1", lambda: "no bus here"), "127.0.0.1", 0) as url,
        aiohttp.ClientSession(url) as session,
    ):

        async def get(path: str, **fields: str) -> Any:
            async with session.get(f"/api/{path}", params={"run_id": RUN, **fields}) as answer:
                assert answer.status == 200, await answer.text()
                return await answer.json(content_type=None)

        assert [row["model"] for row in await get("run/models")] == [WRITER, CHECKER], "the main model is the first"
        for model in seed_store.MODELS:
            steps = steps_of(events, model)
            metrics = await get("run/metrics", names="actor/entropy", model=model)
            assert [row["step"] for row in metrics] == [step.step for step in steps]
            curve = await get("run/rewards", model=model)
            assert {row["model"] for row in curve} == {model} and len(curve) == len(steps)
            trained = await get("run/trained", model=model)
            num_trained = sum(use.trained for step in steps for use in step.rollouts)
            assert sum(row["trained"] for row in trained) == num_trained
            listed = await get("run/rollouts", model=model, step="1")
            assert listed["count"] == sum(use.trained for use in steps[0].rollouts)
        served = await get("run/served")
        assert {(row["node"], row["model"]) for row in served} == {
            (f"node-{model}", model) for model in seed_store.MODELS
        }
        use = next(use for use in steps_of(events, CHECKER)[0].rollouts if use.trained)
        rollout = await get("rollout", rollout_id=use.rollout_id)
        assert [call["model"] for call in rollout["calls"]] == [WRITER, CHECKER, WRITER]
        assert rollout["calls"][1]["advantage"] == pytest.approx(use.advantage)
        assert rollout["calls"][0]["advantage"] != pytest.approx(use.advantage)
        group = await get("rollout/group", rollout_id=use.rollout_id)
        row = next(row for row in group["rollouts"] if row["rollout_id"] == use.rollout_id)
        assert row["advantages"][CHECKER] == pytest.approx(use.advantage)
        (run,) = await get("runs")
        assert run["models"] == [WRITER, CHECKER]
        assert (run["step"], run["max_steps"]) == (STEPS // 2, STEPS), "that of the slowest model"


async def test_a_run_without_a_model_has_a_page(store: StoreProcess) -> None:
    """Its attempts are all that is known of it."""
    reader = Reader(await asyncio.to_thread(connect_readonly, store.url, limits=UI))
    async with (
        serve(UiServer(reader, "127.0.0.1", lambda: "no bus here"), "127.0.0.1", 0) as url,
        aiohttp.ClientSession(url) as session,
    ):
        for question in ("models", "summary", "rewards", "trained", "served", "audit"):
            async with session.get(f"/api/run/{question}", params={"run_id": "nobody"}) as answer:
                assert answer.status == 200, await answer.text()


def test_reports_say_whether_they_are_by_model(store: StoreProcess) -> None:
    for report in REPORTS.values():
        fields = {"a": RUN, "b": RUN} if report.name in COMPARISONS else {}
        values = report.values(fields, "")
        columns = store.sql.query(report.query("lightningbus", 1), parameters=values).column_names
        assert not columns or report.is_by_model == ("model" in columns), report.name
        if report.is_by_model:
            chosen = store.sql.query(
                report.query("lightningbus", of_model=True), parameters={**values, "model": CHECKER}
            )
            assert {row["model"] for row in chosen.named_results()} <= {CHECKER}, report.name


def test_the_report_command_takes_a_model(store: StoreProcess) -> None:
    def report(*words: str) -> "subprocess.CompletedProcess[str]":
        line = [sys.executable, "-m", "lightningbus", "report", *words, "--run", RUN, "--json", "--sql", store.url]
        return subprocess.run(line, capture_output=True, text=True, timeout=HANG_SECONDS, check=False)

    rows = json.loads(report("reward_by_version", "--model", CHECKER, "--as-of", "1").stdout)
    assert {row["model"] for row in rows} == {CHECKER} and max(row["version"] for row in rows) == 1
    unclear = report("reward_by_version", "--as-of", "1")
    assert unclear.returncode == 2 and f"has versions of {CHECKER}, {WRITER}: say of which by --model" in unclear.stderr
    whole = report("outcomes", "--model", CHECKER)
    assert whole.returncode == 2 and "report outcomes is not by model" in whole.stderr


def test_results_have_held_out_rewards_of_each_model(store: StoreProcess) -> None:
    seed_store.insert(store.sql, seed_store.evaluations(RUN, (0, STEPS)))
    actual = read_evaluations(store.sql, RUN, SAMPLINGS)
    for model, rows in ask(store, "reward_by_version").items():
        expected = [
            (row["evaluation"], row["version"], row["mean_reward"], row["standard_error"])
            for row in rows
            if row["mode"] == "eval"
        ]
        rewards = [(each.label, each.version, each.mean_reward, each.standard_error) for each in actual.get(model, ())]
        assert sorted(rewards) == sorted(expected)
    assert any(actual.values())
