"""Reports on a store full of made-up runs: figures counted another way, the past as it was, what is printed."""

import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from math import comb, hypot
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from msgspec.structs import replace

from lightningbus.common.flat_settings import without_secrets
from lightningbus.schemas import ids as identity
from lightningbus.schemas.grading import RolloutGraded
from lightningbus.schemas.spans import SpanBatch
from lightningbus.schemas.tasks import TaskBatchRecord
from lightningbus.schemas.training import TrainingStep
from lightningbus.store.clickhouse.client import connect
from lightningbus.store.reports import REPORTS
from lightningbus.store.reports.compared_runs import COMPARISONS
from lightningbus.trackers.store_points import PointReader
from tests import seed_store
from tests.polling import HANG_SECONDS
from tests.store.conftest import StoreProcess, prepared

RUNS = {"small": 0, "other": 1}
STEPS = 6


@pytest.fixture(scope="module")
def events() -> dict[str, list[Any]]:
    """Everything said, by run."""
    return {name: list(seed_store.run(name, steps=STEPS, seed=seed)) for name, seed in RUNS.items()}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, events: dict[str, list[Any]]) -> Iterator[StoreProcess]:
    """A store that holds both runs, half of them twice."""
    with prepared(tmp_path_factory.mktemp("store")) as built:
        for name, seed in RUNS.items():
            text = events[name]
            seed_store.insert(built.sql, text, first=10_000 * seed + 1)
            seed_store.insert(built.sql, text[: len(text) // 2], first=10_000 * seed + 1)
            seed_store.insert(built.sql, grades(text))
        seed_store.insert(built.sql, seed_store.external_attempt("outside"))
        yield built


def grades(events: Sequence[Any]) -> Iterator[RolloutGraded]:
    """A grade of each rollout, by one call of a judge."""
    for batch in ends(events):
        assert batch.end is not None
        yield RolloutGraded(
            run_id=batch.run_id, task_id=batch.task_id, rollout_id=batch.rollout_id, execution_id=batch.execution_id,
            grading="strict", graders_sha256="a", reward=batch.end.reward, num_judge_calls=1, prompt_tokens=10,
            cost=0.5, started_at_ns=batch.end.ended_ns, graded_at_ns=batch.end.ended_ns + 10**9,
        )  # fmt: skip


def test_grades_failures_and_cost_are_counted_by_grading(store: StoreProcess, events: dict[str, list[Any]]) -> None:
    rewards = [batch.end.reward for batch in ends(events["small"])]
    counted = [reward for reward in rewards if reward is not None]
    (row,) = ask(store, "grading")
    assert (row["grading"], row["graded"], row["failed"]) == ("strict", len(counted), len(rewards) - len(counted))
    assert row["mean_reward"] == pytest.approx(mean(counted)) and row["cost"] == 0.5 * len(rewards)
    assert (row["judge_calls"], row["prompt_tokens"], row["cached_share"]) == (len(rewards), 10 * len(rewards), 0.0)
    assert row["seconds_per_rollout"] == pytest.approx(1.0)


def ask(store: StoreProcess, name: str, run: str = "small", until: datetime | None = None, **fields: str) -> list[Any]:
    """A report's rows as dictionaries."""
    report = REPORTS[name]
    rows = store.sql.query(report.query("lightningbus", until=until), parameters=report.values(fields, run))
    return list(rows.named_results())


def ends(events: Sequence[Any]) -> list[SpanBatch]:
    return [event for event in events if isinstance(event, SpanBatch) and event.end is not None]


def rewards(events: Sequence[Any]) -> dict[int, list[float]]:
    """By the newest version that made a token."""
    by_key: dict[int, list[float]] = defaultdict(list)
    for batch in ends(events):
        assert batch.end is not None
        if batch.end.reward is not None and batch.end.usage.max_weight_version is not None:
            by_key[batch.end.usage.max_weight_version].append(batch.end.reward)
    return by_key


def test_every_report_answers_and_is_a_view_that_says_the_same(store: StoreProcess) -> None:
    for report in REPORTS.values():
        fields = {"a": "small", "b": "other"} if report.name in COMPARISONS else {}
        rows = ask(store, report.name, run="", **fields)
        assert rows, report.name
        assert report.about and report.title
        if report.plot is not None:
            edges = filter(None, [report.plot.spread, report.plot.error, *report.plot.bounds])
            named = {report.plot.x, *report.plot.y, *report.plot.series, *edges}
            assert named <= rows[0].keys(), report.name
        if not report.required:
            assert store.fetch_value(f"SELECT count() FROM {report.name}") == len(rows), report.name


def test_rewards_are_those_of_the_rollouts(store: StoreProcess, events: dict[str, list[Any]]) -> None:
    counted = rewards(events["small"])
    by_name = {row["version"]: row for row in ask(store, "reward_by_version")}
    assert by_name.keys() == counted.keys()
    for version, row in by_name.items():
        assert row["rollouts"] == len(counted[version])
        assert row["mean_reward"] == pytest.approx(mean(counted[version]))
    assert {row["run_id"] for row in ask(store, "reward_by_version", run="")} == {"small", "other"}


def test_named_rewards_have_a_curve_each(store: StoreProcess, events: dict[str, list[Any]]) -> None:
    rows = {(row["name"], row["version"]): row for row in ask(store, "reward_by_name")}
    for row in ask(store, "reward_by_version"):
        same = rows["correct", row["version"]]
        assert [same[name] for name in ("rollouts", "mean_reward", "standard_error")] == pytest.approx(
            [row[name] for name in ("rollouts", "mean_reward", "standard_error")]
        )
    values: dict[int, list[float]] = defaultdict(list)
    for batch in ends(events["small"]):
        if batch.end is not None and "brief" in batch.end.rewards:
            values[batch.end.usage.max_weight_version or 0].append(batch.end.rewards["brief"])
    assert len(values) > 3
    for version, brief in values.items():
        assert rows["brief", version]["mean_reward"] == pytest.approx(mean(brief))
        assert (rows["brief", version]["worst"], rows["brief", version]["best"]) == (min(brief), max(brief))


@pytest.mark.integration
def test_a_failed_rollout_that_counts_as_0_does_so_under_each_name(tmp_path: Path) -> None:
    events = list(seed_store.evaluations("small", range(3), num_tasks=60))
    failed = [batch for batch in ends(events) if batch.end is not None and batch.end.outcome != "ok"]
    assert failed
    with prepared(tmp_path) as store:
        seed_store.insert(store.sql, events)
        totals = {(row["evaluation"], row["version"]): row for row in ask(store, "reward_by_version")}
        named = [row for row in ask(store, "reward_by_name") if row["name"] == "correct"]
        outcomes = ask(store, "outcomes")
        passes = ask(store, "pass_at_k")
    for row in passes:
        total = totals[row["evaluation"], row["version"]]
        assert (row["rollouts"], row["pass_1"]) == (total["rollouts"], pytest.approx(total["mean_reward"]))
    assert totals.keys() == {(row["evaluation"], row["version"]) for row in passes}
    assert totals.keys() == {(row["evaluation"], row["version"]) for row in named}
    for row in named:
        total = totals[row["evaluation"], row["version"]]
        assert (row["rollouts"], row["mean_reward"]) == (total["rollouts"], pytest.approx(total["mean_reward"]))
    assert sum(row["rollouts"] for row in named) == sum(row["rollouts"] for row in outcomes) == len(ends(events))


def test_pass_at_k_is_the_share_of_samples_that_hold_a_success(
    store: StoreProcess, events: dict[str, list[Any]]
) -> None:
    groups: dict[tuple[int, str], list[float]] = defaultdict(list)
    version = {}
    for batch in ends(events["small"]):
        assert batch.end is not None
        if batch.end.reward is not None:
            version[batch.task_id] = max(version.get(batch.task_id, 0), batch.end.usage.max_weight_version or 0)
    for batch in ends(events["small"]):
        assert batch.end is not None
        if batch.end.reward is not None:
            groups[(version[batch.task_id], batch.task_id)].append(batch.end.reward)
    for row in ask(store, "pass_at_k"):
        local = [actual for (of, _), actual in groups.items() if of == row["version"]]
        for k in (1, 2, 4):
            passed = [1 - comb(len(item) - int(sum(item)), k) / comb(len(item), k) for item in local if len(item) >= k]
            assert row[f"pass_{k}"] == pytest.approx(mean(passed)), (row["version"], k)
        assert row["note"] == ""
    assert ask(store, "pass_at_k", solved="0")[0]["pass_1"] == 1.0


@pytest.mark.parametrize(
    ("scale", "shift", "solved", "note"),
    [
        (1.0, 0.0, {}, ""),
        (
            0.8,
            0.0,
            {},
            "none is 1 or more; rewards are 0 to 0.8: say by the parameter solved which of them is a success",
        ),
        (0.8, 0.0, {"solved": "0.8"}, ""),
        (0.5, -0.5, {}, "none is 1 or more; rewards are -0.5 to 0"),
        (1.0, 1.5, {}, "all are 1 or more; rewards are 1.5 to 2.5"),
        (10.0, 0.0, {}, "1 may not be a success; rewards are 0 to 10"),
        (10.0, 0.0, {"solved": "10"}, ""),
        (1.0, 0.0, {"solved": "0"}, "all are 0 or more; rewards are 0 to 1"),
        (0.0, 0.0, {}, ""),
        (0.0, 1.0, {}, ""),
    ],
)
def test_a_threshold_that_does_not_fit_the_rewards_is_said(
    store: StoreProcess, scale: float, shift: float, solved: dict[str, str], note: str
) -> None:
    report = REPORTS["pass_at_k"]
    query = report.query("lightningbus").replace(
        "FROM counted_rewards AS r",
        f"FROM (SELECT * REPLACE (counted_reward * {scale} + {shift} AS counted_reward) FROM counted_rewards) AS r",
    )
    rows = list(store.sql.query(query, parameters=report.values(solved, "small")).named_results())
    assert rows and all(row["note"].startswith(note) and bool(row["note"]) == bool(note) for row in rows), rows[0][
        "note"
    ]


def test_usage_counts_a_prompt_at_each_call_and_what_is_new_once(
    store: StoreProcess, events: dict[str, list[Any]]
) -> None:
    usage = [batch.end.usage for batch in ends(events["small"]) if batch.end]
    rows = ask(store, "usage", input_price="2", output_price="10")
    assert sum(row["prompt_tokens"] for row in rows) == sum(item.prompt_tokens for item in usage)
    assert sum(row["response_tokens"] for row in rows) == sum(item.response_tokens for item in usage)
    assert sum(row["new_prompt_tokens"] for row in rows) < sum(row["prompt_tokens"] for row in rows) / 2
    assert {row["role"] for row in rows} == {"writer", "checker"}
    for row in rows:
        assert row["cost"] == pytest.approx((2 * row["prompt_tokens"] + 10 * row["response_tokens"]) / 1e6)


def test_where_the_time_goes_adds_up(store: StoreProcess) -> None:
    parts = {row["part"][2:]: row["mean_seconds"] for row in ask(store, "time_in_rollout")}
    assert parts["queue"] == pytest.approx(0.25) and parts["publish"] == pytest.approx(0.002)
    assert parts["tool"] == pytest.approx(3 * 0.05)
    whole = store.fetch_value(
        "SELECT avg(date_diff('microsecond', started_at, ended_at)) / 1e6 FROM rollouts WHERE run_id = 'small'"
    )
    assert parts["model"] + parts["tool"] + parts["agent"] == pytest.approx(whole)


def test_failures_of_one_cause_are_one_row(store: StoreProcess, events: dict[str, list[Any]]) -> None:
    failed = [batch for batch in ends(events["small"]) if batch.end and batch.end.outcome != "ok"]
    (row,) = ask(store, "failures")
    assert (row["cause"], row["attempts"]) == ("ValueError: no number in answer #", len(failed))


def test_a_token_has_the_advantage_of_its_call_and_the_lag_of_its_version(
    store: StoreProcess, events: dict[str, list[Any]]
) -> None:
    (step,) = [event for event in events["small"] if isinstance(event, TrainingStep) and event.step == 3]
    use = next(use for use in step.rollouts if use.trained)
    rows = ask(store, "token_credit", rollout_id=use.rollout_id)
    assert len(rows) == use.tokens
    assert {row["advantage"] for row in rows} == {use.advantage}
    assert all(row["staleness"] == 2 - row["version"] for row in rows)
    spoken = "".join(row["token_text"] for row in rows if row["call"] == 0).strip()
    answer = store.fetch_value(
        "SELECT response_preview FROM model_calls "
        f"WHERE run_id = 'small' AND rollout_id = '{use.rollout_id}' AND call = 0"
    )
    assert spoken == answer


def test_the_past_is_as_it_was(store: StoreProcess, events: dict[str, list[Any]]) -> None:
    """As of the end of the third step: nothing of what came after counts."""
    third = next(event for event in events["small"] if isinstance(event, TrainingStep) and event.step == 3)
    until = datetime.fromtimestamp(third.ended_ns / 1e9, UTC) + timedelta(milliseconds=1)
    before = [batch for batch in ends(events["small"]) if batch.end and batch.end.ended_ns < third.ended_ns]
    assert sum(row["rollouts"] for row in ask(store, "outcomes", until=until)) == len(before)
    assert [row["step"] for row in ask(store, "drift", until=until)] == [1, 2, 3]
    assert max(row["version"] for row in ask(store, "reward_by_version", until=until)) == 2


def test_a_metric_that_a_step_did_not_measure_is_no_zero(store: StoreProcess, events: dict[str, list[Any]]) -> None:
    steps = [event for event in events["small"] if isinstance(event, TrainingStep)]
    expected = {step.step: step.metrics.get("rollout_corr/k3_kl") for step in steps}
    assert None in expected.values() and any(expected.values())
    assert {row["step"]: row["k3_kl"] for row in ask(store, "drift")} == expected


def test_two_runs_and_two_versions_are_compared(store: StoreProcess, events: dict[str, list[Any]]) -> None:
    rows = {row["figure"]: row for row in ask(store, "compare", run="", a="small", b="other")}
    for side, run in (("a", "small"), ("b", "other")):
        assert rows["rollouts"][side] == len(ends(events[run]))
    versions = {"a": "small", "b": "small", "version_a": "0", "version_b": "4"}
    rows = {row["figure"]: row for row in ask(store, "compare", run="", **versions)}
    counted = rewards(events["small"])
    assert rows["mean reward"]["a"] == pytest.approx(mean(counted[0]))
    assert rows["mean reward"]["difference"] == pytest.approx(mean(counted[4]) - mean(counted[0]))
    by_version = {row["version"]: row for row in ask(store, "reward_by_version", run="small") if row["mode"] == "train"}
    errors = [by_version[version]["standard_error"] for version in (0, 4)]
    compared = rows["standard error of the mean reward"]
    assert [compared["a"], compared["b"]] == pytest.approx(errors)
    assert compared["difference"] == pytest.approx(hypot(*errors))


def test_nothing_is_lost_or_broken_and_prompts_are_whole(store: StoreProcess, events: dict[str, list[Any]]) -> None:
    published = [task for event in events["small"] if isinstance(event, TaskBatchRecord) for task in event.tasks]
    assert store.fetch_value("SELECT count() FROM tasks WHERE run_id = 'small'") == len(published)
    for empty in ("check_unfinished_rollouts", "check_duplicate_training", "check_prompt_digests"):
        assert store.fetch_value(f"SELECT count() FROM {empty}") == 0
    rows = store.sql.query(
        "SELECT call, length(prompt_ids), request FROM prompts "
        "WHERE run_id = 'small' AND rollout_id = 't0@p1.0' ORDER BY call"
    )
    lengths = [length for _, length, _ in rows.result_rows]
    assert lengths == [40 + 12, 40 + 12 + 10 + 12, 40 + 3 * 12 + 2 * 10]
    assert [len(json.loads(request)["messages"]) for *_, request in rows.result_rows] == [2, 4, 6]


def test_a_prompt_that_is_not_what_it_was_is_told(store: StoreProcess) -> None:
    other = "broken"
    events = list(seed_store.run(other, steps=1, groups=1, samples=1, seed=5))
    seed_store.insert(store.sql, events)
    store.sql.command(
        "ALTER TABLE raw_call_payloads UPDATE prompt_ids = arrayMap(id -> id + 1, prompt_ids) "
        f"WHERE run_id = '{other}' AND call = 1 SETTINGS mutations_sync = 1"
    )
    broken = store.sql.query("SELECT call FROM check_prompt_digests WHERE run_id = 'broken' ORDER BY call").result_rows
    assert broken == [(1,), (2,)]


def command(store: StoreProcess, *arguments: object, check: bool = True) -> "subprocess.CompletedProcess[str]":
    line = [sys.executable, "-m", "lightningbus", *map(str, arguments), "--sql", store.url]
    return subprocess.run(line, capture_output=True, text=True, timeout=HANG_SECONDS, check=check)


def test_the_command_prints_tables_json_csv_and_pictures(store: StoreProcess, tmp_path: Path) -> None:
    assert "pass@k" in command(store, "report").stdout
    printed = command(store, "report", "reward_by_version", "--run", "small").stdout
    assert "Reward by weight version" in printed and "mean_reward" in printed
    past = json.loads(command(store, "report", "reward_by_version", "--json", "--as-of", "2").stdout)
    assert max(row["version"] for row in past) == 2
    assert command(store, "report", "usage", "--csv", "--run", "other").stdout.startswith("run_id,model,role,num_calls")
    for name in ("reward_by_version", "slowest_rollouts"):
        picture = tmp_path / f"{name}.png"
        command(store, "report", name, "--plot", picture)
        assert picture.read_bytes().startswith(b"\x89PNG")
    missing = command(store, "report", "compare", check=False)
    assert missing.returncode == 2 and "report compare needs a: --param a=..." in missing.stderr
    wrong = command(store, "report", "reward_by_version", "--as-of", "yesterday", check=False)
    assert wrong.returncode == 2 and "neither a weight version nor a time" in wrong.stderr


def test_a_report_is_bounded_and_tells_how_to_see_the_rest(store: StoreProcess) -> None:
    assert len(ask(store, "token_credit", run="")) > 1000
    done = command(store, "report", "token_credit", "--json")
    assert len(json.loads(done.stdout)) == 1000
    assert done.stderr == ("these are the first 1000 rows: --limit 0 shows all, --param rollout_id=... fewer\n")


@pytest.mark.parametrize(
    "arguments", [["report", "outcomes"], ["audit"], ["rollouts", "show", "t0@p1.0"]], ids=lambda words: words[0]
)
def test_an_unknown_run_is_an_error_with_the_nearest_name(store: StoreProcess, arguments: list[str]) -> None:
    done = command(store, *arguments, "--run", "smal", check=False)
    assert (done.returncode, done.stdout) == (2, "")
    place = f"here or in the store at {without_secrets(store.url)}"
    assert done.stderr == f"lightningbus: there is no run 'smal' {place}; did you mean 'small'?\n"


def test_a_rollout_can_be_read(store: StoreProcess) -> None:
    stdout = command(store, "rollouts", "show", "t0@p1.0", "--run", "small", "--color", "advantage").stdout
    assert "user: question t0@p1 0" in stdout and "assistant: " in stdout and "execute_tool add" in stdout
    assert "call 1 · checker" in stdout
    whole = json.loads(command(store, "rollouts", "show", "t0@p1.0", "--json").stdout)
    assert [len(call["tokens"]) for call in whole["model_calls"]] == [10, 10, 10]
    missing = command(store, "rollouts", "show", "nobody", check=False)
    assert missing.returncode == 2 and "no rollout is called 'nobody'" in missing.stderr


def test_reports_name_their_parameters() -> None:
    with pytest.raises(ValueError, match="report reward_by_version takes no parameters, not x"):
        REPORTS["reward_by_version"].values({"x": "1"}, "")
    with pytest.raises(ValueError, match="solved: 'a' is not a number"):
        REPORTS["pass_at_k"].values({"solved": "a"}, "")


def test_audits_have_a_command_of_their_own(store: StoreProcess) -> None:
    rows = json.loads(command(store, "audit", "--run", "small", "--json").stdout)
    assert [row["version"] for row in rows] == list(range(6)) and {row["engine_id"] for row in rows} == {
        seed_store.ENGINE
    }
    assert {(row["tokens"], row["differing"], row["verdict"]) for row in rows} == {(10, 0, "")}


def test_the_client_for_a_machine_of_ones_own_compresses_nothing(store: StoreProcess) -> None:
    assert connect(store.url).write_compression is None


def test_the_documentation_lists_them() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "store.md").read_text()
    listed = page.split("<!-- reports: begin -->")[1].split("<!-- reports: end -->")[0].strip().splitlines()[2:]
    assert [line.split("|")[1].strip(" `") for line in listed] == list(REPORTS)
    for line, report in zip(listed, REPORTS.values(), strict=True):
        assert report.about in line


@pytest.mark.parametrize("page", ["graders", "recipes", "store"])
def test_queries_of_the_documentation_run_as_they_stand(store: StoreProcess, page: str) -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / f"{page}.md").read_text()
    queries = [query for block in re.findall(r"```sql\n(.*?)```", text, re.S) for query in block.split(";")]
    queries = [query for query in queries if re.search(r"^\s*(SELECT|WITH)\b", query, re.M)]
    assert queries
    for query in queries:
        store.sql.query(query)


def test_fairness_is_of_what_was_dispatched_and_a_replaced_task_counts_once(
    store: StoreProcess, events: dict[str, list[Any]]
) -> None:
    tasks = [
        record.task
        for event in events["small"]
        if isinstance(event, TaskBatchRecord)
        for record in event.tasks
        if record.task.mode == "train"
    ]
    steps = [event for event in events["small"] if isinstance(event, TrainingStep)]
    trained = {use.rollout_id for step in steps for use in step.rollouts if use.trained}
    rows = ask(store, "fairness")
    for kind in ("duration", "label difficulty"):
        of_kind = [row for row in rows if row["kind"] == kind]
        assert sum(row["dispatched"] for row in of_kind) == len(tasks) and len(of_kind) > 1, kind
        assert sum(row["trained"] for row in of_kind) == len(trained)
        assert sum(row["dispatched_share"] for row in of_kind) == pytest.approx(1)
        assert sum(row["trained_share"] for row in of_kind) == pytest.approx(1)
    for row in rows:
        if row["kind"] == "label difficulty":
            labelled = {
                identity.rollout_id(t.id, t.sample_index) for t in tasks if t.labels["difficulty"] == row["value"]
            }
            assert (row["dispatched"], row["trained"]) == (len(labelled), len(labelled & trained))
    assert len([row for row in rows if row["kind"] == "task"]) <= 20
    assert 0 <= rows[0]["ks_p_value"] <= 1


def test_trackers_get_the_metrics_and_rewards_of_the_reports(store: StoreProcess) -> None:
    reader = PointReader("small", max_staleness=1)
    list(reader.read(store.sql, is_over=True))  # rewards are final once their rollouts are as many as at the last look
    points = {point.key: point for point in reader.read(store.sql, is_over=True)}
    rows = store.sql.query("SELECT step, metrics FROM training_steps WHERE run_id = 'small'").result_rows
    assert len(rows) == STEPS
    assert {step: points[f"step/{step}"].metrics for step, _ in rows} == dict(rows)
    rewards = {row["version"]: row for row in ask(store, "reward_by_version") if row["mode"] == "train"}
    assert rewards
    for version, row in rewards.items():
        point = points[f"reward_by_version/train/{version}"]
        assert (point.axis, point.position) == ("version", version)
        assert point.metrics["reward_by_version/train/mean_reward"] == row["mean_reward"]
        assert point.metrics["reward_by_version/train/rollouts"] == row["rollouts"]
    for row in ask(store, "reward_by_name"):
        point = points[f"reward_by_name/train/{row['name']}/{row['version']}"]
        assert point.metrics[f"reward_by_name/train/{row['name']}/mean_reward"] == row["mean_reward"]


@pytest.mark.integration
def test_the_sql_of_training_rewards_by_environment_is_of_trained_rollouts_as_the_docs_have_it(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs/from-prime-rl.md").read_text()
    (query,) = re.findall(r"```sql\n(SELECT.*?)```", text, re.DOTALL)
    labels: dict[str, str] = {}
    by_environment: dict[tuple[int, str], list[float]] = defaultdict(list)
    events = []
    for event in seed_store.run("small", steps=STEPS, seed=1):
        if isinstance(event, TaskBatchRecord):
            labels |= {record.task.id: record.task.labels["difficulty"] for record in event.tasks}
        if isinstance(event, TrainingStep):
            uses = [replace(use, trained=False) if use.rollout_id.endswith("0") else use for use in event.rollouts]
            for use in uses:
                if use.trained and use.reward is not None:
                    by_environment[event.step, labels[use.task_id]].append(use.reward)
            event = replace(event, rollouts=tuple(uses))
        events.append(event)
    with prepared(tmp_path) as store:
        seed_store.insert(store.sql, events, first=1)
        rows = store.sql.query(query.replace("task_set", "difficulty")).named_results()
        assert {(row["step"], row["environment"]): row["mean_reward"] for row in rows} == {
            key: pytest.approx(mean(values)) for key, values in by_environment.items()
        }
