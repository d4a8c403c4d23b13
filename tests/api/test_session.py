"""A session reads a finished run's files and a live run's store, and what it returns shows itself."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas
import pytest
from matplotlib import pyplot

import lightningbus as lb
from lightningbus.bus.client import Bus
from lightningbus.run.display.terminal import render_html
from lightningbus.run.run_directory.directory import Endpoints, RunDirectory
from tests import seed_store
from tests.polling import HANG_SECONDS
from tests.store.conftest import Start, prepared

pytestmark = pytest.mark.integration

HOSTILE = "<script>alert(1)</script>\x1b[2J"


def test_it_reads_the_files_of_a_finished_run(seeded: Path) -> None:
    with lb.connect(runs=seeded) as session:
        assert [row["run_id"] for row in session.runs()] == ["first"]
        failed = session.rollouts(outcome="agent_error")
        assert len(failed) and {row["outcome"] for row in failed} == {"agent_error"}
        assert all(row["task_id"].startswith(row["task"]) and "@" not in row["task"] for row in failed)
        assert session.rollouts(limit=3).title == "the newest 3; limit= gives more"
        assert session.rollouts(limit=100_000).title == ""
        assert len(session.rollouts(limit=3)) == 3 and not len(session.rollouts(limit=0))
        frame = session.query_df("SELECT version, rollouts FROM reward_by_version ORDER BY version")
        assert isinstance(frame, pandas.DataFrame) and list(frame["version"]) == list(range(6))
        assert session.query("SELECT {n:UInt8} + 1 AS n", n=1)[0] == {"n": 2}
        curve = session.reward_curve()
        assert curve.training.column("version") == list(range(6)) and "data:image/png;base64," in curve._repr_html_()
        frame = curve.df()
        assert list(frame["mode"].unique()) == ["train"] and list(frame["version"]) == list(range(6))
        brief = session.reward_curve(reward="brief")
        assert brief.training.column("mean_reward") != curve.training.column("mean_reward")
        axes = brief.plot()
        assert "mean brief ±" in axes.get_ylabel() and axes.figure.number in pyplot.get_fignums(), "a notebook shows it"
        pyplot.close(axes.figure)
        assert repr(brief).startswith("brief of run first")
        assert session.rollouts(outcome="ok", limit=1)[0]["rewards"].keys() == {"brief", "correct"}
        empty = session.rollouts(evaluation="none")
        assert set(failed.columns) == set(empty.columns) and list(empty.df()["reward"]) == []
        assert list(session.query_df("SELECT 1 AS one, 'a' AS b WHERE one = 2; ").columns) == ["one", "b"]
        assert "call 0 · writer" in repr(session.transcript(failed[0]["rollout_id"]))


def test_reports_are_tables_as_the_command_prints_them(seeded: Path) -> None:
    with lb.connect("first", runs=seeded) as session:
        passes = session.report("pass_at_k", solved=0.5)
        assert passes.column("run_id") and {"pass_1", "note"} <= set(passes.columns) and passes.title
        rewards = session.report("reward_by_version")
        assert {"low_95", "high_95"} <= set(rewards.columns)
        compared = {row["figure"]: row for row in session.report("compare", a="first", b="first")}
        assert compared["rollouts"]["a"] == compared["rollouts"]["b"] > 0
        assert (
            compared["mean reward"]["difference"]
            == compared["standard error of the paired difference"]["difference"]
            == 0
        )
        tasks = session.report("compare_tasks", a="first", b="first")
        assert (
            len([row for row in tasks if row["rollouts_a"] == row["rollouts_b"] > 0]) == compared["tasks in both"]["a"]
        )


def test_an_earlier_run_of_a_name_is_compared_from_either_sessions(tmp_path: Path) -> None:
    runs, pair = tmp_path / "runs", {"a": "first", "b": "first-20261128-191500"}
    for steps, name in enumerate(pair.values(), start=1):
        with prepared(runs / name / "store") as store:
            seed_store.insert(store.sql, seed_store.run("first", steps=steps, groups=1))
    figures = []
    for name in pair.values():
        with lb.connect(name, runs=runs) as session:
            figures.append({row["figure"]: (row["a"], row["b"]) for row in session.report("compare", **pair)})
    assert figures[0]["rollouts"] == figures[1]["rollouts"] and figures[0]["rollouts"][0] < figures[0]["rollouts"][1]


def test_a_table_without_rows_has_the_types_of_a_full_one(seeded: Path) -> None:
    with lb.connect(runs=seeded) as session:
        full, empty = session.rollouts(outcome="ok"), session.rollouts(evaluation="none")
        assert len(empty) == 0 and dict(empty.df().dtypes) == dict(full.df().dtypes)
        assert dict(full[:0].df().dtypes) == dict(full.df().dtypes)
        curve = session.reward_curve()
        assert dict(curve.training[:0].df().dtypes) == dict(curve.training.df().dtypes)
        sql = "SELECT * FROM reward_by_version WHERE rollouts > {least:UInt64}"
        some, none = (session.query_df(sql, least=least) for least in (0, 10**9))
        assert len(some) and not len(none) and dict(none.dtypes) == dict(some.dtypes)
        assert dict(session.query(sql, least=10**9).df().dtypes) == dict(session.query(sql, least=0).df().dtypes)
        assert session.query("SELECT map('a', 1) AS m, NULL AS n WHERE 0").df().shape == (0, 2)


async def test_its_methods_can_be_awaited(seeded: Path) -> None:
    async with await lb.aconnect("first", runs=seeded) as session:
        rollouts = await session.rollouts(mode="train", limit=5)
        assert len(rollouts) == 5 and len(await session.runs()) == 1
        assert (await session.transcript(rollouts[0]["rollout_id"])).rollout["run_id"] == "first"
        assert (await session.reward_curve()).run == "first"
        assert len(await session.query_df("SELECT 1")) == len(await session.query("SELECT 1")) == 1


def test_wrong_input_ends_in_one_sentence(seeded: Path) -> None:
    wrong: dict[str, Any] = {"sample": 3}
    (seeded / "second" / "store").mkdir(parents=True)
    with lb.connect(runs=seeded) as session:
        for call, sentence in (
            (lambda: lb.connect("frist", runs=seeded), "there is no run 'frist'; did you mean 'first'?"),
            (lambda: session.query("INSERT INTO raw_runs (run_id) VALUES ('x')"), "questions only read"),
            (lambda: session.query("SELECT * FROM rollout"), "rollout"),
            (lambda: session.reward_curve(reward="correkt"), "has no reward 'correkt': did you mean 'correct'?"),
            (lambda: session.transcript("nobody"), "no rollout is called 'nobody'"),
            (lambda: session.rollouts(run="frist"), "there is no run 'frist' in the store; did you mean 'first'?"),
            (lambda: session.reward_curve("frist"), "there is no run 'frist' in the store; did you mean 'first'?"),
            (lambda: session.reward_curve("second"), "run 'second' has a store of its own: lightningbus.connect("),
            (lambda: session.transcript("t0@p0.0", run="second"), "run 'second' has a store of its own"),
            (lambda: session.report("pas_at_k"), "there is no report 'pas_at_k'; did you mean 'pass_at_k'?"),
            (lambda: session.report("pass_at_k", solve=1), "report pass_at_k takes solved, not solve"),
            (lambda: session.report("pass_at_k", solved=float("nan")), "solved: 'nan' is not a number"),
            (lambda: session.report("compare", a="first", b="frist"), "there is no run 'frist' in the store"),
            (lambda: session.report("compare", a="first", b="first", version_b=99), "has no rollouts with mode=train"),
            (
                lambda: session.query("SELECT * FROM compare(a='first', b='first')"),
                "`lightningbus report` takes others",
            ),
            (lambda: session.rollouts(mode="test"), "mode: there is no 'test'; known are train, eval"),
            (
                lambda: session.rollouts(outcome="okay"),
                "outcome: there is no 'okay'; did you mean 'ok'? known are ok",
            ),
            (lambda: session.rollouts(limit=-1), "limit: -1 is no number of rows: give one from 0 to"),
            (lambda: session.publish(["1+1"]), "run 'first' is not up"),
            (lambda: session.evaluate(["1+1"]), "run 'first' is not up: `lightningbus.evaluate` evaluates one that"),
            (lambda: session.publish(["1+1"], **wrong), "sample: no such option; did you mean 'samples'?"),
            (lambda: session.publish(["1+1"], samples=0), "samples: 0 is not between 1 and 65536"),
            (lambda: session.publish(["1+1"], mode="test"), "mode: 'test' is neither train nor eval"),
        ):
            with pytest.raises(lb.UserError) as raised:
                call()  # type: ignore[no-untyped-call]
            assert sentence in str(raised.value) and "\n" not in str(raised.value)


def test_a_run_without_data_is_not_answered_for_by_the_latest_one(
    seeded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs").symlink_to(seeded)
    monkeypatch.chdir(tmp_path)
    with lb.connect() as session:
        assert len(session.runs()) == 1
    (tmp_path / "others" / "empty" / "store").mkdir(parents=True)
    with lb.connect("empty", runs="others") as session, pytest.raises(lb.UserError, match="no store is running"):
        session.runs()


async def test_it_follows_a_run_from_its_store_to_its_files(
    bus: Bus, nats_url: str, start_store: Start, tmp_path: Path
) -> None:
    store = start_store(nats_url, flush_interval_seconds=0.05)
    directory = RunDirectory(tmp_path)  # the store's data lies in it, as in a run's
    directory.write_endpoints(Endpoints(os.getpid(), nats_url, store.url))
    session = await lb.aconnect(tmp_path.name, runs=tmp_path.parent)
    published = await session.publish([{"question": "1+1"}, {"question": "2+2"}], samples=3, evaluation="mine")
    assert published == (6, 0)
    assert await session.publish([{"question": "1+1"}], samples=3, evaluation="mine") == (0, 3)
    count = "SELECT count() AS n FROM tasks WHERE evaluation = 'mine'"
    store.until(count, 6)
    assert (await session.query(count))[0]["n"] == 6
    store.process.terminate()
    store.process.wait()
    directory.clear_endpoints()
    assert (await session.query(count))[0]["n"] == 6
    await session.close()


def test_text_of_agents_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as the kernel of a notebook does
    table = lb.Table((HOSTILE,), ((HOSTILE,),), HOSTILE)
    rollout = {"run_id": HOSTILE, "rollout_id": HOSTILE, "outcome": "ok", "reward": 1.0, "num_calls": 1}
    rollout |= {"response_tokens": 1, "seconds": 1.0, "attempt": 1, "error": HOSTILE}
    call = {"call": 0, "role": HOSTILE, "finish_reason": "stop", "prompt_tokens": 1, "started_at": 0}
    call |= {"request": json.dumps({"messages": [{"role": "user", "content": HOSTILE}]}), "response": '{"content": ""}'}
    transcript = lb.Transcript(rollout, [call], {0: []}, [])
    for html in (table._repr_html_(), transcript._repr_html_(), render_html(transcript.render())):
        assert "<script" not in html and "&lt;script&gt;" in html and "\x1b" not in html
    assert "\x1b" not in repr(table) + repr(transcript)


def test_a_long_table_says_how_many_rows_there_are() -> None:
    table = lb.Table(("n",), tuple((n,) for n in range(60)))
    assert repr(table).endswith("60 rows, 50 shown") and "60 rows, 50 shown" in table._repr_html_()
    assert (len(table[50:]), table[-1], [row["n"] for row in table][:2]) == (10, {"n": 59}, [0, 1])
    assert list(table.df()["n"]) == table.column("n") == list(range(60))
    assert repr(lb.Table((), ())) == "no rows"


INTERRUPTED = """
import asyncio, os, signal, threading
from lightningbus.common.event_loop import run_blocking

async def work():
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0)
        print("cleaned up")

async def cell():
    try:
        run_blocking(work())
    except KeyboardInterrupt:
        print("interrupted")

asyncio.run(cell())
"""


def test_ctrl_c_waits_until_the_work_has_cleaned_up(tmp_path: Path) -> None:
    done: Any = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=True, timeout=HANG_SECONDS
    )
    assert done.stdout.split("\n")[:2] == ["cleaned up", "interrupted"]


def test_a_script_shows_a_sentence_without_the_traceback_of_a_thread(tmp_path: Path) -> None:
    script = "import lightningbus as lb; lb.connect('first', runs='none')"
    done: Any = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=HANG_SECONDS, check=False
    )
    *frames, sentence = done.stderr.splitlines()
    assert sentence.endswith("UserError: there is no run 'first'; there is no run in none")
    assert len(frames) < 12 and "asyncio" not in done.stderr
