"""One rule says which reward a rollout counts with: the learner's. The report, the page and the Python API have it."""

import asyncio
import dataclasses
import json
from collections import defaultdict
from collections.abc import Iterator
from math import sqrt
from pathlib import Path
from statistics import mean, pstdev, stdev
from typing import Any

import aiohttp
import pytest
from msgspec.structs import replace

from lightningbus.api.sessions.reward_curve import RewardCurve
from lightningbus.learner.rollouts.assembler import Rollout, training_reward
from lightningbus.run.evaluation.evaluation import RESULTS
from lightningbus.run.evaluation.request import RolloutRequest
from lightningbus.run.evaluation.used_label import is_label_used
from lightningbus.schemas.base import Event, Outcome
from lightningbus.schemas.spans import SpanBatch
from lightningbus.schemas.tasks import Task, TaskBatchRecord, TaskRecord
from lightningbus.schemas.training import TrainingStep
from lightningbus.store.clickhouse.client import connect_readonly
from lightningbus.store.clickhouse.query_limits import UI
from lightningbus.store.reports import REPORTS
from lightningbus.store.ui.client import Reader
from lightningbus.store.ui.server import UiServer, serve
from lightningbus.tasks.task_loading import TaskInput
from tests import seed_store
from tests.store.conftest import StoreProcess, prepared

FAILED: tuple[Outcome, ...] = ("agent_error", "timeout", "infra_error", "poison", "preempted", "reward_timeout")
VERSION, TASKS, SAMPLES = 3, 5, 4


def fail(batch: SpanBatch, number: int) -> SpanBatch:
    """Every third rollout fails, in each way there is."""
    assert batch.end is not None
    outcome = FAILED[number // 3 % len(FAILED)] if number % 3 == 0 else "ok"
    reward = number % 7 / 7 if outcome == "ok" else None
    usage = batch.end.usage
    if outcome == "infra_error":  # it made no call
        usage = replace(usage, min_weight_version=None, max_weight_version=None)
    return replace(batch, end=replace(batch.end, outcome=outcome, reward=reward, usage=usage))


def training(run: str, **settings: str) -> Iterator[Event]:
    """A run whose learner has these settings."""
    number = 0
    for event in seed_store.run(run, steps=4, groups=6, samples=SAMPLES, seed=4):
        if isinstance(event, SpanBatch) and event.end is not None:
            event, number = fail(event, number), number + 1
        elif isinstance(event, TrainingStep):
            event = replace(event, settings=json.dumps({**json.loads(event.settings), **settings}))
        yield event


def evaluation(run: str) -> Iterator[Event]:
    """An evaluation pinned to one version, with several samples of each problem."""
    ends = [batch for batch in seed_store.evaluations(run, range(SAMPLES), TASKS) if batch.end is not None]
    ends = [batch for batch in ends if batch.evaluation == "greedy"]
    for number, batch in enumerate(ends):
        problem, sample = number % TASKS, number // TASKS
        named = replace(batch, task_id=f"h{problem}@{run}", rollout_id=f"h{problem}@{run}.{sample}")
        task = Task(
            id=named.task_id, run_id=run, agent="default", mode="eval", evaluation="greedy", input=0,
            sample_index=sample, group_size=SAMPLES, weight_versions={"policy": VERSION},
        )  # fmt: skip
        record = TaskRecord(task=task, rollout_id=named.rollout_id, span=batch.spans[0])
        yield TaskBatchRecord(tasks=(record,))
        yield fail(named, number)


@pytest.fixture(scope="module")
def events() -> dict[str, list[Event]]:
    """What the runs say, by name: one without the setting, and one for each of its values."""
    return {
        "default": [*training("default"), *evaluation("default")],
        "mask": [*training("mask", failed_rollouts="mask"), *evaluation("mask")],
        "zero": [*training("zero", failed_rollouts="zero"), *evaluation("zero")],
        "named": [*training("named", failed_rollouts="mask"), *evaluation("named")],
    }


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, events: dict[str, list[Event]]) -> Iterator[StoreProcess]:
    with prepared(tmp_path_factory.mktemp("store")) as built:
        named = [*training("named", failed_rollouts="mask", reward="other"), *evaluation("named")]
        for number, of_run in enumerate((events | {"named": [*name_rewards(named)]}).values()):
            seed_store.insert(built.sql, of_run, first=1 + 10_000 * number)
        yield built


def name_rewards(events: list[Event]) -> Iterator[Event]:
    """Each task names its reward: training `exact`, the evaluation the main one; the learner trains on `other`."""
    for event in events:
        if isinstance(event, TaskBatchRecord):
            names = {"train": "exact", "eval": ""}
            records = (
                replace(each, task=replace(each.task, reward_name=names[each.task.mode])) for each in event.tasks
            )
            event = replace(event, tasks=tuple(records))
        elif isinstance(event, SpanBatch) and event.end is not None and event.end.reward is not None:
            reward = event.end.reward
            others = {"exact": reward, "other": 7.0}
            main = 9.0 if event.mode == "train" else reward
            event = replace(event, end=replace(event.end, reward=main, rewards=others))
        yield event


def expected(events: list[Event], failed: str) -> dict[tuple[str, int], dict[str, list[float]]]:
    """Rewards that count by mode and version, and by task, counted with the learner's own function."""
    by_task: dict[tuple[str, int], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for batch in events:
        if not isinstance(batch, SpanBatch) or batch.end is None:
            continue
        if batch.mode == "eval" and batch.end.outcome == "reward_timeout":
            continue
        if batch.mode == "eval":
            by_task["eval", VERSION][batch.task_id].append(batch.end.reward or 0.0)
            continue
        rollout = Rollout.__new__(Rollout)  # only what decides on its reward is looked at
        object.__setattr__(rollout, "problem", "")
        for name in ("outcome", "reward"):
            object.__setattr__(rollout, name, getattr(batch.end, name))
        reward, version = training_reward(rollout, failed), batch.end.usage.max_weight_version
        if reward is not None and version is not None:
            by_task["train", version][batch.task_id].append(reward)
    return by_task


def figures(by_task: dict[str, list[float]]) -> dict[str, Any]:
    """Number, mean, spread, and the standard error over tasks (arXiv:2411.00640, equation 4, with n / (n - 1))."""
    values = [reward for rewards in by_task.values() for reward in rewards]
    middle, num = mean(values), len(by_task)
    squares = sum(sum(reward - middle for reward in rewards) ** 2 for rewards in by_task.values())
    error = sqrt(num / (num - 1) * squares) / len(values)
    return {
        "rollouts": len(values),
        "mean_reward": pytest.approx(middle),
        "reward_spread": pytest.approx(pstdev(values)),
        "standard_error": pytest.approx(error),
    }


@pytest.mark.parametrize(
    ("run", "failed"), [("default", "mask"), ("mask", "mask"), ("zero", "zero"), ("named", "mask")]
)
async def test_report_page_and_python_api_count_rewards_as_the_learner_does(
    store: StoreProcess, events: dict[str, list[Event]], run: str, failed: str
) -> None:
    counted = {key: figures(by_task) for key, by_task in expected(events[run], failed).items()}
    assert len(counted) == 5
    report = REPORTS["reward_by_version"]
    rows = await asyncio.to_thread(store.sql.query, report.query("lightningbus"), parameters=report.values({}, run))
    reader = Reader(await asyncio.to_thread(connect_readonly, store.url, limits=UI))
    async with (
        serve(UiServer(reader, "127.0.0.1", lambda: "no bus here"), "127.0.0.1", 0) as url,
        aiohttp.ClientSession(url) as session,
        session.get("/api/run/rewards", params={"run_id": run}) as answer,
    ):
        page = await answer.json(content_type=None)
    for figures_of in (list(rows.named_results()), page):
        actual = {
            (row["mode"], row["version"]): {name: row[name] for name in counted["train", 1]} for row in figures_of
        }
        assert actual == counted
    curve = await asyncio.to_thread(RewardCurve.load, store.sql, run)
    for mode, table in (("train", curve.training), ("eval", curve.evaluations)):
        for row in table:
            names = ("rollouts", "mean_reward", "standard_error")
            assert {name: row[name] for name in names} == {name: counted[mode, row["version"]][name] for name in names}


@pytest.mark.parametrize(("run", "failed"), [("zero", "zero"), ("named", "mask")])
def test_a_comparison_counts_rewards_in_the_same_way(
    store: StoreProcess, events: dict[str, list[Event]], run: str, failed: str
) -> None:
    report, counted = REPORTS["compare"], expected(events[run], failed)
    sides = {"a": run, "b": run, "version_a": "1", "version_b": "2"}
    rows = store.sql.query(report.query("lightningbus"), parameters=report.values(sides, "")).named_results()
    by_figure = {row["figure"]: row for row in rows}
    for side, version in (("a", 1), ("b", 2)):
        figures_of = figures(counted["train", version])
        assert by_figure["mean reward"][side] == figures_of["mean_reward"]
        assert by_figure["standard error of the mean reward"][side] == figures_of["standard_error"]
    if run == "named":
        arguments = report.values(sides | {"reward": "other"}, "")
        rows = store.sql.query(report.query("lightningbus"), parameters=arguments).named_results()
        assert {row["figure"]: row for row in rows}["mean reward"]["a"] == 7.0, "every rollout has that one"


@pytest.mark.parametrize("run", ["mask", "named"])
def test_outcomes_have_the_reward_that_counts(store: StoreProcess, events: dict[str, list[Event]], run: str) -> None:
    report = REPORTS["outcomes"]
    rows = store.sql.query(report.query("lightningbus"), parameters=report.values({}, run)).named_results()
    actual = {row["mode"]: row["mean_reward"] for row in rows if row["outcome"] == "ok"}
    for mode in ("train", "eval"):
        ends = [each.end for each in events[run] if isinstance(each, SpanBatch) and each.mode == mode and each.end]
        assert actual[mode] == pytest.approx(mean(end.reward or 0.0 for end in ends if end.outcome == "ok"))


def test_the_setting_makes_a_difference(events: dict[str, list[Event]]) -> None:
    zero, mask = (expected(events["zero"], failed)["train", 1] for failed in ("zero", "mask"))
    assert sum(map(len, zero.values())) > sum(map(len, mask.values()))


def test_with_equal_samples_the_standard_error_is_that_of_the_mean_over_problems(
    events: dict[str, list[Event]],
) -> None:
    graded = expected(events["mask"], "mask")["eval", VERSION]
    fewest = min(map(len, graded.values()))
    by_task = {task: rewards[:fewest] for task, rewards in graded.items()}
    assert fewest >= SAMPLES - 1 and len(by_task) == TASKS
    means = [mean(rewards) for rewards in by_task.values()]
    assert figures(by_task)["standard_error"] == stdev(means) / sqrt(TASKS)


def test_a_used_label_is_refused_for_another_evaluation_of_its_version_alone(
    store: StoreProcess, events: dict[str, list[Event]]
) -> None:
    request = RolloutRequest(run="used", evaluation="greedy", weight_versions={"policy": VERSION}, id_parts=("digest",))
    (task,) = request.with_versions_in_ids().tasks([TaskInput("a", 0)])
    span = next(batch.spans[0] for batch in events["default"] if isinstance(batch, SpanBatch))
    seed_store.insert(
        store.sql, [TaskBatchRecord(tasks=(TaskRecord(task=task, rollout_id="a.0", span=span),))], first=90_000
    )
    assert not is_label_used(store.sql, request), "it goes on with its own rollouts"
    others = {"id_parts": ("other",), "weight_versions": {"policy": VERSION + 1}, "evaluation": "new", "run": "fresh"}
    used = [is_label_used(store.sql, dataclasses.replace(request, **{name: value})) for name, value in others.items()]
    assert used == [True, False, False, False]


def test_an_evaluation_leaves_out_what_was_not_graded(store: StoreProcess, events: dict[str, list[Event]]) -> None:
    graded = [mean(rewards) for rewards in expected(events["default"], "mask")["eval", VERSION].values()]
    ungraded = [
        e for e in events["default"] if isinstance(e, SpanBatch) and e.end and e.end.outcome == "reward_timeout"
    ]
    assert any(batch.mode == "eval" for batch in ungraded) and any(batch.mode == "train" for batch in ungraded)
    parameters = {"run_id": "default", "suffix": "@default", "reward": "", "pass_reward": 1.0}
    ((_, actual, standard_error, *_),) = store.sql.query(RESULTS, parameters=parameters).result_rows
    assert actual == pytest.approx(mean(graded)) and standard_error == pytest.approx(stdev(graded) / sqrt(len(graded)))


@pytest.mark.integration
@pytest.mark.parametrize("is_always_given", [True, False])
def test_a_comparison_of_a_named_reward_counts_failures_as_the_rewards_by_name(
    tmp_path: Path, is_always_given: bool
) -> None:
    """A failed rollout counts 0 only under the names that all others have."""
    events: list[Event] = []
    for number, event in enumerate(seed_store.evaluations("named", range(2), num_tasks=60)):
        if isinstance(event, SpanBatch) and event.end is not None and event.end.outcome == "ok":
            brief = {"brief": 0.5} if is_always_given or number % 3 else {}
            event = replace(event, end=replace(event.end, rewards={"correct": 1.0, **brief}))
        events.append(event)
        if isinstance(event, SpanBatch) and event.end is not None:
            task = Task(id=event.task_id, run_id="named", agent="default", mode="eval", input=0)
            record = TaskRecord(task=task, rollout_id=event.rollout_id, span=event.spans[0])
            events.append(TaskBatchRecord(tasks=(record,)))
    assert any(isinstance(each, SpanBatch) and each.end and each.end.outcome != "ok" for each in events)
    report = REPORTS["compare"]
    with prepared(tmp_path) as store:
        seed_store.insert(store.sql, events)
        rows = store.sql.query("SELECT * FROM reward_by_name WHERE evaluation = 'sampled'").named_results()
        of_name = {(row["name"], row["version"]): row for row in rows}
        assert len(of_name) == 4
        for (name, version), expected_row in of_name.items():
            sides = {"a": "named", "b": "named", "version_a": str(version), "version_b": str(version)}
            chosen = {"mode": "eval", "evaluation": "sampled", "reward": name}
            answer = store.sql.query(report.query("lightningbus"), parameters=report.values(sides | chosen, ""))
            actual = {row["figure"]: row["a"] for row in answer.named_results()}
            assert actual["rollouts that count"] == expected_row["rollouts"]
            assert actual["mean reward"] == pytest.approx(expected_row["mean_reward"])
            assert actual["standard error of the mean reward"] == pytest.approx(expected_row["standard_error"])
