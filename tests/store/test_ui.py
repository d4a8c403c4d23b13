"""What the pages are told: figures counted another way, filters, a rollout put together, and what is refused."""

import asyncio
import json
import subprocess
import sys
import tomllib
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from itertools import pairwise
from pathlib import Path
from statistics import mean, stdev
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from clickhouse_connect.driver.exceptions import OperationalError

from benchmarks.store import ui
from lightningbus.bus.client import Bus
from lightningbus.common.listeners import find_reachable_host
from lightningbus.schemas.grading import RolloutGraded
from lightningbus.schemas.spans import SpanBatch
from lightningbus.store.clickhouse import migrations
from lightningbus.store.clickhouse.client import connect_readonly
from lightningbus.store.clickhouse.query_limits import UI, explain_error, settings_for
from lightningbus.store.ui import curves, queries
from lightningbus.store.ui.client import QueryFailedError, Reader, to_json_value
from lightningbus.store.ui.rollouts import filters as finding
from lightningbus.store.ui.rollouts.rollout import build_attempts, build_calls, parse_messages, select_attempt
from lightningbus.store.ui.server import UiServer, serve
from tests import seed_store
from tests.commands import ROOT
from tests.polling import HANG_SECONDS
from tests.store.conftest import StoreProcess, client
from tests.store.conftest import serving as serving_store

RUN = "small"
ROLLOUT = "t1@p4.2"
Ask = Callable[..., Awaitable[Any]]


@pytest.fixture(scope="module")
def ends() -> list[SpanBatch]:
    """How the rollouts of the run ended."""
    return [event for event in seed_store.run(RUN, seed=1) if isinstance(event, SpanBatch) and event.end is not None]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreProcess]:
    """A store in which everything of the run stands twice."""
    with serving_store(tmp_path_factory.mktemp("store")) as built:
        migrations.migrate(client(built.url, "default"), "lightningbus")
        migrations.create_views(built.sql, "lightningbus")
        for _ in range(2):
            seed_store.insert(built.sql, seed_store.run(RUN, seed=1))
        yield built


@pytest.fixture
async def site(store: StoreProcess) -> AsyncIterator[str]:
    """The address of the pages."""
    client = await asyncio.to_thread(connect_readonly, store.url, limits=UI)
    async with serve(UiServer(Reader(client), "127.0.0.1", lambda: "no bus here"), "127.0.0.1", 0) as url:
        yield url


@pytest.fixture
async def ask(site: str) -> AsyncIterator[Ask]:
    """Asks one endpoint, with the status it should have."""
    async with aiohttp.ClientSession(site) as session:

        async def get(path: str, status: int = 200, **parameters: str) -> Any:
            async with session.get(f"/api/{path}", params=parameters) as response:
                assert response.status == status, await response.text()
                return json.loads(await response.text())

        yield get


def good(ends: list[SpanBatch]) -> list[SpanBatch]:
    return [batch for batch in ends if batch.end is not None and batch.end.outcome == "ok"]


async def test_runs_and_their_figures_are_those_of_the_rollouts(ask: Ask, ends: list[SpanBatch]) -> None:
    (run,) = await ask("runs")
    rewards = [batch.end.reward for batch in good(ends) if batch.end is not None]
    (training,) = run["sets"]
    assert (run["run_id"], training["mode"], training["rollouts"], run["version"]) == (RUN, "train", len(ends), 6)
    assert training["mean_reward"] == pytest.approx(mean(reward for reward in rewards if reward is not None))
    assert (run["state"], run["step"], run["max_steps"], run["settings"]["lr"]) == ("finished", 6, 6, 1e-6)
    (summary,) = await ask("run/summary", run_id=RUN)
    assert (summary["rollouts"], summary["ended_well"]) == (len(ends), len(good(ends)))
    assert sum(summary["outcomes"].values()) == len(ends) and summary["outcomes"]["ok"] == len(good(ends))
    curve = await ask("run/rewards", run_id=RUN)
    assert [row["version"] for row in curve] == list(range(6))
    assert sum(row["rollouts"] for row in curve) == len(good(ends))
    assert all(row["worst"] <= row["mean_reward"] <= row["best"] and row["per_point"] == 1 for row in curve)


async def test_steps_time_throughput_and_versions_served(ask: Ask, ends: list[SpanBatch]) -> None:
    stored = {row["name"]: row["steps"] for row in await ask("run/metric_names", run_id=RUN)}
    assert stored["off_policy/ess"] == stored["actor/ppo_kl"] == 6 and "staleness/mean" not in stored
    steps = await ask("run/metrics", run_id=RUN, names="off_policy/ess,staleness/mean,actor/ppo_kl")
    assert [(row["name"], row["step"]) for row in steps] == [
        (name, step) for name in ("actor/ppo_kl", "off_policy/ess") for step in range(1, 7)
    ]
    assert [row["value"] for row in steps[6:]] == pytest.approx([1 - step / 1000 for step in range(1, 7)])
    measured = await ask("run/metrics", run_id=RUN, names="rollout_corr/k3_kl")
    assert [row["step"] for row in measured] == [1, 4], "the steps that measured it"
    (settings,) = await ask("run/settings", run_id=RUN)
    assert (settings["step"], json.loads(settings["settings"])["max_steps"]) == (6, 6)
    parts = {row["part"]: row["mean_seconds"] for row in await ask("run/time", run_id=RUN)}
    assert parts["queue"] == pytest.approx(0.25) and parts["tool"] == pytest.approx(0.15)
    intervals = await ask("run/throughput", run_id=RUN)
    assert sum(row["rollouts"] for row in intervals) == len(ends)
    assert {row["seconds"] for row in intervals[:-1]} == {10.0} and 0 < intervals[-1]["seconds"] < 10, (
        "the last is partial"
    )
    assert all(later["start_ms"] - row["start_ms"] >= 10_000 for row, later in pairwise(intervals))
    nodes = await ask("run/idle_nodes", run_id=RUN)
    assert {row["node"] for row in nodes} == {"node-0"}
    assert all(0 < row["busy_seconds"] <= min(2.5, row["seconds"] + 0.01) for row in nodes), (
        "calls that overlap count once"
    )
    (audit,) = await ask("run/audit", run_id=RUN)
    assert audit == {"tokens": 60, "differing": 0, "quarantined": 0, "trained_before": 0}, "ten tokens in each step"
    tenths = await ask("run/trained", run_id=RUN)
    assert [row["tenth"] for row in tenths] == list(range(1, 11)) and sum(row["ended"] for row in tenths) == len(ends)
    assert sum(row["trained"] for row in tenths) == len(good(ends))
    assert all(tenth["max_seconds"] <= slower["min_seconds"] for tenth, slower in pairwise(tenths))
    served = await ask("run/served", run_id=RUN)
    assert [row["version"] for row in served] == [6, 5, 4, 3, 2, 1]
    assert (served[0]["swaps"], served[0]["mean_pause_seconds"]) == (6, pytest.approx(0.05))
    assert await ask("fleet") == {"members": [], "problem": "no bus here"}


async def test_processes_of_a_run_are_known_after_their_end(ask: Ask, ends: list[SpanBatch]) -> None:
    rows = await ask("run/last_seen", run_id=RUN)
    by_name = {(row["role"], row["id"]): row for row in rows}
    assert list(by_name)[:2] == [("learner", ""), ("inference", "node-0")] and len(by_name) == len(rows)
    learner, node = by_name["learner", ""], by_name["inference", "node-0"]
    assert (learner["work"], learner["version"], learner["model"]) == (6, 6, "policy") and node["version"] == 5
    runners = {name: row for (role, name), row in by_name.items() if role == "runner"}
    assert runners.keys() == {batch.runner for batch in ends} and all(row["model"] == "" for row in runners.values())
    assert sum(row["work"] for row in runners.values()) == len(ends), "each once, though all rows stand twice"
    last = max(span.end_ns for batch in ends for span in batch.spans if span.end_ns)
    assert max(row["last_ms"] for row in runners.values()) == pytest.approx(last / 1e6, abs=1.0)
    assert await ask("run/last_seen", run_id="nobody") == []


async def test_graders_of_a_run_are_known_after_its_end(ask: Ask, store: StoreProcess) -> None:
    grades = [
        RolloutGraded(
            run_id="graded", task_id="t", rollout_id=f"t.{number}", execution_id=f"e{number}", grading=grading,
            graders_sha256="", reward=1.0, started_at_ns=1, graded_at_ns=2_000_000_000 + number,
        )
        for grading in ("live", "strict") for number in range(3)
    ]  # fmt: skip
    for _ in range(2):
        seed_store.insert(store.sql, grades, first=400_000)
    (grader,) = await ask("run/last_seen", run_id="graded")
    assert (grader["role"], grader["work"], grader["last_ms"]) == ("grader", 3, 2000), "later gradings are no role's"


async def test_evaluations_have_results_of_their_own_in_which_a_failure_counts_as_0(
    ask: Ask, store: StoreProcess
) -> None:
    batches = [batch for batch in seed_store.evaluations("evaluated", (0, 3), num_tasks=20) if batch.end is not None]
    seed_store.insert(store.sql, batches, first=300_000)
    rewards: dict[tuple[str, int], list[float]] = {}
    for batch in batches:
        assert batch.end is not None
        version = int(batch.task_id.rpartition("v")[2])
        rewards.setdefault((batch.evaluation, version), []).append(batch.end.reward or 0.0)
    curve = await ask("run/rewards", run_id="evaluated")
    actual = {
        (row["evaluation"], row["version"]): (row["rollouts"], row["mean_reward"], row["standard_error"])
        for row in curve
    }
    assert actual == {
        key: (20, pytest.approx(mean(values)), pytest.approx(stdev(values) / 20**0.5))
        for key, values in rewards.items()
    }
    assert any(batch.end.outcome != "ok" for batch in batches if batch.end is not None)
    run = next(run for run in await ask("runs") if run["run_id"] == "evaluated")
    results = {row["evaluation"]: (row["first_mean"], row["last_mean"]) for row in run["results"]}
    assert results == {
        name: tuple(pytest.approx(mean(rewards[name, version])) for version in (0, 3)) for name in ("greedy", "sampled")
    }
    assert run["state"] == "idle" and run["settings"] == {}
    for table in ("raw_attempts", "raw_runs"):
        await asyncio.to_thread(store.sql.command, f"DELETE FROM {table} WHERE run_id = 'evaluated'")


async def test_a_curve_has_only_so_many_points(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    for query in (queries.REWARDS, curves.METRICS):
        assert f", {queries.MAX_POINTS}) + 1" in query
    monkeypatch.setattr(queries, "REWARDS", queries.REWARDS.replace(f", {queries.MAX_POINTS})", ", 3)"))
    curve = await ask("run/rewards", run_id=RUN)
    assert [(row["version"], row["per_point"]) for row in curve] == [(0, 2), (2, 2), (4, 2)]


@pytest.mark.parametrize(("query", "num_names"), [(queries.REWARDS, 1), (queries.NAMED_REWARDS, 2)])
async def test_a_long_curve_stays_within_the_rows_that_a_page_may_ask_for(
    store: StoreProcess, query: str, num_names: int
) -> None:
    limits = UI | {"max_result_rows": 3 * num_names}
    reader = Reader(await asyncio.to_thread(connect_readonly, store.url, limits=limits))
    short = query.replace(f", {queries.MAX_POINTS})", ", 3)")
    assert len(await reader.query(short, run_id=RUN, model="")) == 3 * num_names
    with pytest.raises(QueryFailedError, match="Limit for result exceeded"):
        await reader.query(query, run_id=RUN, model="")


async def test_the_pulse_changes_when_a_rollout_ends(ask: Ask, store: StoreProcess) -> None:
    before = await ask("run/change_token", run_id="growing")
    seed_store.insert(store.sql, seed_store.run("growing", steps=1, groups=1, samples=1), first=50_000)
    assert await ask("run/change_token", run_id="growing") != before
    await asyncio.to_thread(store.sql.command, "DELETE FROM raw_attempts WHERE run_id = 'growing'")
    await asyncio.to_thread(store.sql.command, "DELETE FROM raw_runs WHERE run_id = 'growing'")


@pytest.mark.parametrize(
    ("filters", "fits"),
    [
        ({}, lambda end: True),
        ({"outcome": "agent_error"}, lambda end: end.outcome == "agent_error"),
        ({"reward_from": "0.5"}, lambda end: end.reward == 1),
        ({"reward_from": "0", "reward_to": "0.5"}, lambda end: end.reward == 0),
        (
            {"version_from": "3", "version_to": "3"},
            lambda end: 3 in (end.usage.min_weight_version, end.usage.max_weight_version),
        ),
        ({"mode": "eval"}, lambda end: False),
        ({"role": "writer"}, lambda end: True),
        ({"role": "nobody"}, lambda end: False),
        ({"tool": "add"}, lambda end: True),
        ({"tool": "subtract"}, lambda end: False),
    ],
)
async def test_filters(ask: Ask, ends: list[SpanBatch], filters: dict[str, str], fits: Callable[[Any], bool]) -> None:
    actual = await ask("run/rollouts", run_id=RUN, **filters)
    expected = {batch.rollout_id for batch in ends if fits(batch.end)}
    assert actual["count"] == len(expected)
    assert {row["rollout_id"] for row in actual["rollouts"]} <= expected
    assert len(actual["rollouts"]) == min(len(expected), finding.PAGE_SIZE)


async def test_pages_and_orders(ask: Ask, ends: list[SpanBatch]) -> None:
    first = await ask("run/rollouts", run_id=RUN)
    second = await ask("run/rollouts", run_id=RUN, page="2")
    assert len({row["rollout_id"] for item in (first, second) for row in item["rollouts"]}) == len(ends)
    assert (await ask("run/rollouts", run_id=RUN, page="9"))["rollouts"] == []
    seconds = [row["seconds"] for row in (await ask("run/rollouts", run_id=RUN, sort="slowest"))["rollouts"]]
    assert seconds == sorted(seconds, reverse=True)
    ended = [row["ended_ms"] for row in first["rollouts"]]
    assert ended == sorted(ended, reverse=True)
    worst = [row["reward"] for row in (await ask("run/rollouts", run_id=RUN, sort="worst"))["rollouts"]]
    assert worst[0] == 0 and worst.index(1) == worst.count(0)


async def test_words_are_looked_for_in_prompts_and_answers(ask: Ask, store: StoreProcess) -> None:
    named = await ask("run/rollouts", run_id=RUN, name="T1@P4")
    assert {row["rollout_id"] for row in named["rollouts"]} == {f"t1@p4.{sample}" for sample in range(4)}
    matches = await ask("run/rollouts", run_id=RUN, words="t1@p4 Question")
    assert {row["rollout_id"] for row in matches["rollouts"]} == {f"t1@p4.{sample}" for sample in range(4)}
    replies = store.fetch_value(
        f"SELECT response_preview FROM model_calls WHERE run_id = '{RUN}' AND rollout_id = '{ROLLOUT}' LIMIT 1"
    )
    assert ROLLOUT in {row["rollout_id"] for row in (await ask("run/rollouts", run_id=RUN, words=replies))["rollouts"]}
    assert (await ask("run/rollouts", run_id=RUN, words="question zebra"))["count"] == 0


async def test_a_rollout_knows_its_group_its_neighbours_and_its_step(ask: Ask, ends: list[SpanBatch]) -> None:
    group = await ask("rollout/group", run_id=RUN, rollout_id=ROLLOUT)
    rewards = {batch.rollout_id: batch.end.reward for batch in ends if batch.end and batch.task_id == "t1@p4"}
    assert {row["rollout_id"]: row["reward"] for row in group["rollouts"]} == rewards and len(rewards) == 4
    times = sorted((batch.end.ended_ns, batch.rollout_id) for batch in ends if batch.end)
    place = [rollout for _, rollout in times].index(ROLLOUT)
    assert (group["previous"], group["next"]) == (times[place - 1][1], times[place + 1][1])
    ends_of_run = [await ask("rollout/group", run_id=RUN, rollout_id=times[index][1]) for index in (0, -1)]
    assert (ends_of_run[0]["previous"], ends_of_run[1]["next"]) == ("", "")
    advantages = {row["rollout_id"]: row["advantages"] for row in group["rollouts"]}
    uses = (await ask("rollout", run_id=RUN, rollout_id=ROLLOUT))["uses"]
    assert advantages[ROLLOUT] == {"policy": uses[0]["advantage"]}
    step = await ask("run/rollouts", run_id=RUN, step=str(uses[0]["step"]))
    assert ROLLOUT in {row["rollout_id"] for row in step["rollouts"]}
    assert {row["rollout_id"].split("@")[1].split(".")[0] for row in step["rollouts"]} == {"p4"}


async def test_two_rollouts_are_compared_by_message(ask: Ask) -> None:
    diff = await ask("rollout/diff", run_id=RUN, a=ROLLOUT, b="t1@p4.3")
    assert (diff["a"]["rollout_id"], diff["b"]["rollout_id"]) == (ROLLOUT, "t1@p4.3")
    assert diff["rows"][0]["same"] and diff["rows"][0]["a"]["role"] == "system"
    assert {len(row["a"]["pieces"]) > 1 for row in diff["rows"][1:]} == {True}
    same = await ask("rollout/diff", run_id=RUN, a=ROLLOUT, b=ROLLOUT)
    assert all(row["same"] for row in same["rows"]) and len(same["rows"]) == len(diff["rows"])
    assert "is called nobody" in (await ask("rollout/diff", 404, run_id=RUN, a=ROLLOUT, b="nobody"))["error"]


async def test_a_tool_is_also_known_by_an_attribute_of_its_span(ask: Ask, store: StoreProcess) -> None:
    seed_store.insert(store.sql, seed_store.instrumented("attributed"), first=70_000)
    assert (await ask("run/choices", run_id="attributed"))[0]["tools"] == ["add"]
    assert (await ask("run/rollouts", run_id="attributed", tool="add"))["count"] == 1
    for table in ("raw_attempts", "raw_spans", "raw_runs"):
        await asyncio.to_thread(store.sql.command, f"DELETE FROM {table} WHERE run_id = 'attributed'")


async def test_the_choices_of_the_filters_and_the_state_of_a_run(ask: Ask) -> None:
    (choices,) = await ask("run/choices", run_id=RUN)
    assert {name: sorted(values) for name, values in choices.items()} == {
        "evaluations": [],
        "roles": ["checker", "writer"],
        "tools": ["add"],
        "labels": ["difficulty: easy", "difficulty: hard"],
        "parts": ["brief", "correct"],
    }
    assert (await ask("run/state", run_id=RUN))["state"] == "finished"
    assert (await ask("run/state", run_id="nowhere"))["state"] == "missing"


def test_words_are_found_at_the_beginning_of_a_line_and_in_any_case() -> None:
    sql, values = finding.build_query({"words": "Carry-on"})
    assert "request" in sql and "response" in sql
    assert {"Carry", "carry", "CARRY", "nCarry", "tcarry"} <= set(values["word_0"])
    assert "on" in values["word_1"]


async def test_a_rollout_has_its_trace_and_its_calls_with_what_each_added(ask: Ask, store: StoreProcess) -> None:
    actual = await ask("rollout", run_id=RUN, rollout_id=ROLLOUT)
    (attempt,) = actual["attempts"]
    assert attempt["counts"] and not attempt["running"] and actual["attempt"] == attempt
    known = {span["span_id"] for span in actual["spans"]}
    roots = [span for span in actual["spans"] if span["parent_span_id"] not in known]
    assert [span["name"] for span in roots] == ["send lb.task.train.default"]
    assert sum(span["name"] == "execute_tool add" for span in actual["spans"]) == 3
    assert any(span["name"] == "train policy" for span in actual["spans"])
    first, second, third = actual["calls"]
    turns = [(item["call"], item["role"]) for item in actual["conversation"]]
    assert turns == [(0, "system"), *((call, role) for call in range(3) for role in ("user", "assistant"))]
    assert (second["continues"], second["known"], third["continues"], third["known"]) == (0, 3, 1, 5)
    assert "".join(first["token_texts"]).strip() == actual["conversation"][2]["text"]
    assert actual["task"]["labels"] == {"difficulty": "easy"} and actual["task"]["question"] == "1"
    assert len(first["tokens"]) == len(first["logprobs"]) == len(first["versions"]) == 10
    assert (
        first["advantage"] == actual["uses"][0]["advantage"]
        and first["trained_version"] == actual["uses"][0]["version"]
    )
    prompts = store.sql.query(
        f"SELECT request FROM prompts WHERE run_id = '{RUN}' AND rollout_id = '{ROLLOUT}' AND call = 2"
    )
    whole = await ask("request", run_id=RUN, rollout_id=ROLLOUT, execution_id=attempt["execution_id"], call="2")
    assert len(json.loads(whole["request"])["messages"]) == 6
    assert whole["request"] == prompts.result_rows[0][0]


async def test_neighbours_are_those_of_the_rewards(ask: Ask, ends: list[SpanBatch]) -> None:
    in_order = sorted(ends, key=lambda batch: (batch.end.ended_ns if batch.end else 0, batch.rollout_id))
    rewards = {batch.rollout_id: batch.end.reward for batch in in_order if batch.end is not None}
    before: dict[tuple[str, int], float | None] = {}
    changed, failing = [], [name for name, reward in rewards.items() if not reward]
    for batch in in_order:
        task = (batch.task_id.rpartition("@")[0], batch.sample_index)
        pair = (before.get(task), rewards[batch.rollout_id])
        if None not in pair and pair[0] != pair[1]:
            changed.append(batch.rollout_id)
        before[task] = rewards[batch.rollout_id]
    names = list(rewards)
    for place in (0, len(names) // 2, len(names) - 1):
        group = await ask("rollout/group", run_id=RUN, rollout_id=names[place])
        later = set(names[place + 1 :])
        assert group["next_failing"] == next((name for name in failing if name in later), "")
        assert group["next_changed"] == next((name for name in changed if name in later), "")
        source, sample = names[place].split("@")[0], names[place].rpartition(".")[2]
        assert (group["first_version"], group["last_version"]) == (f"{source}@p1.{sample}", f"{source}@p6.{sample}")


async def test_what_is_not_there_or_wrong_is_a_sentence(ask: Ask) -> None:
    assert (await ask("rollout", 404, run_id=RUN, rollout_id="x"))["error"] == "no rollout of run small is called x"
    assert (await ask("rollout", 404, run_id=RUN, rollout_id=ROLLOUT, execution_id="x"))["error"].endswith(
        "no such attempt"
    )
    assert (await ask("rollout", 400, run_id=RUN))["error"] == "rollout_id is missing"
    assert (await ask("run/metrics", 400, run_id=RUN))["error"].startswith("names: ")
    many = ",".join(map(str, range(curves.MAX_METRICS + 1)))
    assert (await ask("run/metrics", 400, run_id=RUN, names=many))["error"] == "names: at most 24 metrics, not 25"
    assert (await ask("run/secrets", 404, run_id=RUN))["error"] == "there is no /api/run/secrets"
    wrong = {"reward_from": "much", "version_to": "-1", "sort": "random", "page": "0", "words": "!!", "step": "x"}
    for name, value in wrong.items():
        assert (await ask("run/rollouts", 400, run_id=RUN, **{name: value}))["error"].startswith(f"{name}: ")
    injected = await ask("run/rollouts", run_id=RUN, name="' OR 1 = 1 --", outcome="') OR (1", words="x') --")
    assert injected["count"] == 0


async def test_nothing_can_be_written_and_a_question_has_its_limits(store: StoreProcess) -> None:
    reader = Reader(await asyncio.to_thread(connect_readonly, store.url, limits=UI))
    before = store.fetch_value("SELECT count() FROM raw_runs")
    for statement in (
        "INSERT INTO raw_runs (run_id) VALUES ('mine')",
        "DROP TABLE raw_runs",
        "CREATE TABLE mine (a Int8) ENGINE = Memory",
        "SELECT * FROM file('/etc/passwd', 'LineAsString')",
        "SELECT 1 SETTINGS readonly = 0",
    ):
        with pytest.raises(QueryFailedError, match="readonly"):
            await reader.query(statement)
    with pytest.raises(QueryFailedError, match="Limit for result exceeded"):
        await reader.query("SELECT number FROM numbers(100000)")
    with pytest.raises(QueryFailedError, match="nothing"):
        await reader.query("SELECT * FROM nothing")
    assert store.fetch_value("SELECT count() FROM raw_runs") == before


async def test_the_same_query_is_asked_once_while_it_is_under_way(store: StoreProcess) -> None:
    reader = Reader(await asyncio.to_thread(connect_readonly, store.url, limits=UI))
    sql = "SELECT generateUUIDv4() AS id, {a:String} AS a"
    leaving = asyncio.create_task(reader.query(sql, a="1"))
    await asyncio.sleep(0)
    leaving.cancel()
    first, same, other = await asyncio.gather(*(reader.query(sql, a=a) for a in ("1", "1", "2")))
    assert first == same and first is not same and first[0] is not same[0] and first != other
    assert await reader.query(sql, a="1") != first, "once it has its answer it is asked anew"
    with pytest.raises(asyncio.CancelledError):
        await leaving
    failed = await asyncio.gather(*(reader.query("SELECT * FROM nothing") for _ in "12"), return_exceptions=True)
    assert [type(each) for each in failed] == [QueryFailedError] * 2


def test_a_user_who_may_set_nothing_is_sent_nothing() -> None:
    assert list(settings_for("0", UI)) == ["max_execution_time", "max_result_rows", "max_memory_usage", "readonly"]
    assert settings_for("0", UI)["readonly"] == 1
    assert "readonly" not in settings_for("2", UI) and settings_for("2", UI)["max_execution_time"] == 10
    assert settings_for("1", UI) == {}


async def test_other_sites_and_other_names_are_refused(site: str) -> None:
    async with aiohttp.ClientSession() as session:
        port = site.rsplit(":", 1)[1]
        for host, status in (
            (f"evil.example:{port}", 421),
            ("", 421),
            (f"localhost:{port}", 200),
            (f"[::1]:{port}", 200),
        ):
            async with session.get(
                f"{site}/api/runs", headers={"Host": host, "Origin": "http://evil.example"}
            ) as response:
                assert response.status == status, host
                assert "Access-Control-Allow-Origin" not in response.headers
                assert response.headers["Cross-Origin-Resource-Policy"] == "same-origin"
        async with session.post(f"{site}/api/runs") as response:
            assert response.status == 405


async def test_a_name_of_a_proxy_is_allowed_by_a_setting() -> None:
    pages = UiServer(Reader(), "0.0.0.0", list, allowed_hosts=["runs.Example.com"])
    async with serve(pages, "127.0.0.1", 0) as url, aiohttp.ClientSession() as session:
        for host, status in (("runs.example.com", 200), ("other.example.com", 421)):
            async with session.get(url, headers={"Host": host}) as response:
                assert response.status == status, await response.text()
                assert status == 200 or "--allowed-host" in await response.text()


async def test_the_page_has_no_inline_code_and_a_strict_policy(site: str) -> None:
    async with aiohttp.ClientSession() as session, session.get(site) as response:
        policy, text = response.headers["Content-Security-Policy"], await response.text()
    assert "default-src 'none'" in policy and "unsafe" not in policy
    assert "<style" not in text and text.count("<script") == text.count('src="/static/theme.js"></script>') + 1 == 2
    assert text.count('<script type="module" src=') == 1
    for file in filter(Path.is_file, (Path(queries.__file__).parent / "static").rglob("*")):
        assert not any(word in file.read_text() for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "eval("))


def test_every_file_of_the_page_is_in_the_package() -> None:
    directory = Path(queries.__file__).parent
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["*"]
    packaged = {file for pattern in patterns for file in directory.glob(pattern)}
    assert set(filter(Path.is_file, (directory / "static").rglob("*"))) <= packaged


def test_the_attempt_that_counts_is_the_first_result_in_the_stream() -> None:
    def row(execution: str, resolution: str, sequence: int) -> dict[str, Any]:
        which = {"execution_id": execution, "attempt": sequence, "resolution": resolution}
        return {**which, "stream_sequence": sequence, "started_ms": float(sequence)}

    ended = [row("a", "retried", 1), row("b", "abandoned", 2), row("c", "final", 4), row("d", "final", 3)]
    attempts = build_attempts(ended, [{"execution_id": "e", "attempt": 5, "started_ms": 9.0}])
    assert [item["execution_id"] for item in attempts if item["counts"]] == ["d"]
    assert [item["execution_id"] for item in attempts if item["running"]] == ["e"]
    assert select_attempt(attempts, "")["execution_id"] == "d" and select_attempt(attempts, "a")["execution_id"] == "a"  # type: ignore[index]
    assert select_attempt(attempts, "x") is None and select_attempt([], "") is None


def test_requests_of_any_kind_have_something_to_show() -> None:
    assert parse_messages('{"prompt": "one"}') == [{"role": "prompt", "content": "one"}]
    assert parse_messages("not json") == [{"role": "request", "content": "not json"}]
    assert parse_messages("[1]") == [{"role": "request", "content": [1]}] and parse_messages("") == []
    (call,) = build_calls(
        [{"call": 0, "model": "policy"}],
        [{"call": 0, "request": "", "request_prefix_refs": [], "response": "cut of"}],
        [],
    )
    assert call["answer"] == "cut of" and call["advantage"] is None and call["messages"] == []


def test_a_compacted_conversation_names_the_call_that_wrote_its_summary() -> None:
    task, on = {"role": "user", "content": "mend it"}, {"role": "user", "content": "on"}
    reply = {"role": "assistant", "content": "I look at the files of it."}
    summary = "The index of the parser starts at one and has to start at zero."
    anew = [{"role": "user", "content": f"So far: {summary}"}]
    talks = [([task], reply["content"]), ([task, reply, on], summary), (anew, "ok"), ([*anew, reply, on], "x")]
    calls = build_calls(
        [{"call": number, "model": "policy"} for number in range(4)],
        [
            {"call": number, "request": json.dumps({"messages": messages}), "request_prefix_refs": [],
             "response": json.dumps({"role": "assistant", "content": answer})}
            for number, (messages, answer) in enumerate(talks)
        ],
        [],
    )  # fmt: skip
    assert [call["summary_call"] for call in calls] == [None, None, 1, None]


def test_values_and_errors_are_as_json_and_people_read_them() -> None:
    assert to_json_value({"a": [float("nan"), (1, float("inf"))]}) == {"a": [None, [1, None]]}
    response = explain_error(ValueError("Code: 60. DB::Exception: Unknown table x. (UNKNOWN_TABLE) (version 26.9.2.1)"))
    assert response.startswith("Unknown table x") and response.endswith("has a store of this version written here?")


async def test_the_command_shows_who_is_alive_and_serves_until_it_is_told_to_stop(
    store: StoreProcess, bus: Bus
) -> None:
    line = [sys.executable, "-m", "lightningbus", "ui", "--port", "0", "--sql", store.url]
    async with bus.heartbeat("runner", "runner-7", lambda: {"state": "running", "status": {"busy": 3}}):
        process = await asyncio.create_subprocess_exec(*line, "--bus", bus.nc.connected_url.geturl(), stderr=PIPE)
        assert process.stderr is not None
        response = ""
        while "UI at " not in response:
            response = (await process.stderr.readline()).decode()
        async with aiohttp.ClientSession(response.split()[2]) as session, asyncio.timeout(HANG_SECONDS):
            members: list[Any] = []
            while not members:
                await asyncio.sleep(0.2)
                async with session.get("/api/fleet") as answer:
                    members = (await answer.json())["members"]
    assert (members[0]["id"], members[0]["status"]) == ("runner-7", {"busy": 3})
    process.terminate()
    assert await process.wait() == 0


@pytest.mark.integration
async def test_on_all_interfaces_it_prints_an_address_for_others_and_warns(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "lightningbus", "ui", "--port", "0", "--host", "0.0.0.0"]
    process = await asyncio.create_subprocess_exec(*line, cwd=tmp_path, stderr=PIPE)
    assert process.stderr is not None
    lines: list[str] = []
    while not lines or " too" not in lines[-1]:
        lines.append((await process.stderr.readline()).decode())
        assert lines[-1], lines
    process.terminate()
    assert await process.wait() == 0
    address = lines[-2].removeprefix("UI at ").strip()
    assert urlsplit(address).hostname == find_reachable_host("0.0.0.0") != "127.0.0.1"
    assert lines[-1] == f"on this machine it is at http://127.0.0.1:{urlsplit(address).port} too\n"
    assert f"the page at {address} asks nobody for a password, and other machines reach it: " in "".join(lines[:-2])


@pytest.mark.integration
def test_without_a_store_the_command_ends_in_one_sentence() -> None:
    line = [sys.executable, "-m", "lightningbus", "ui", "--port", "0", "--sql", "http://127.0.0.1:9"]
    ended = subprocess.run(line, capture_output=True, text=True, timeout=HANG_SECONDS)
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-1].startswith("lightningbus: no ClickHouse answers at http://127.0.0.1:9")


def test_a_store_that_is_gone_is_a_sentence() -> None:
    response = explain_error(
        OperationalError("Error HTTPConnectionPool(host='127.0.0.1', port=1): Max retries exceeded")
    )
    assert response == "the store does not answer any more"


def test_the_table_of_the_page_is_what_was_measured() -> None:
    page = ui.PAGE.read_text()
    displayed = page.split("<!-- benchmarks.ui: begin -->\n")[1].split("\n<!-- benchmarks.ui: end -->")[0]
    rows = json.loads(ui.RESULTS.read_text())
    assert displayed == ui.printed(rows)
    assert all(row["value"] < row["ceiling"] for row in rows if row["case"].endswith("p50"))
