"""A page that is open while its run ends: it goes on from the files, and leaves them to whoever wants them."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any

import aiohttp
import pytest

from lightningbus.common.flat_settings import without_secrets
from lightningbus.run.run_data.other_runs import OtherRuns
from lightningbus.run.run_directory.directory import Endpoints, RunDirectory
from tests import seed_store
from tests.polling import HANG_SECONDS
from tests.store.conftest import prepared, serving

pytestmark = pytest.mark.integration

COMMAND = [sys.executable, "-P", "-m", "lightningbus"]
NO_BUS = "nats://127.0.0.1:9"


@pytest.mark.long
async def test_the_page_outlives_its_run_and_never_keeps_a_store_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = RunDirectory(tmp_path / "runs" / "one").create()
    supervisor = await asyncio.create_subprocess_exec("sleep", "600", stdout=DEVNULL)
    try:
        with prepared(run.store) as store:
            seed_store.insert(store.sql, seed_store.run("one", steps=1, groups=1, samples=2))
            run.write_endpoints(Endpoints(supervisor.pid, NO_BUS, without_secrets(store.url)))
            ui = await asyncio.create_subprocess_exec(*COMMAND, "ui", "--port", "0", cwd=tmp_path, stderr=PIPE)
            assert ui.stderr is not None
            url = (await ui.stderr.readline()).decode().split()[2]
            await _until(url, "live", lambda text: '"one"' in text)
        text = await _until(url, "gone")
        assert "goes on by itself" in text, "while the run is up its files are not touched"
    finally:
        supervisor.kill()
        await supervisor.wait()
    await _until(url, "finished", lambda text: '"one"' in text)
    ended = await asyncio.to_thread(
        subprocess.run,
        [*COMMAND, "query", "SELECT 41 + count() FROM runs"],
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    assert ended.returncode == 0 and "42" in ended.stdout, ended.stderr
    await _until(url, "finished")
    with serving(run.store) as store:
        seed_store.insert(store.sql, seed_store.run("two", steps=1, groups=1, samples=2), first=50_000)
    await _until(url, "finished", lambda text: '"two"' in text)
    ui.terminate()
    assert await ui.wait() == 0


async def test_the_page_waits_for_the_first_run_and_says_how_to_start_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ui = await asyncio.create_subprocess_exec(*COMMAND, "ui", "--port", "0", "--bus", NO_BUS, cwd=tmp_path, stderr=PIPE)
    assert ui.stderr is not None
    url = (await ui.stderr.readline()).decode().split()[2]
    sentence = (await ui.stderr.readline()).decode()
    assert "there is no run here yet: `lightningbus train -c run.yaml` starts one" in sentence
    text = await _until(url, "gone")
    assert "There is no run here yet: `lightningbus train" in text and "goes on by itself" in text
    _make_run("one")
    await _until(url, "finished", lambda text: '"one"' in text)
    ui.terminate()
    assert await ui.wait() == 0


@pytest.mark.long
async def test_a_page_that_waits_for_a_command_never_says_that_the_store_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _make_run("one")
    async with _page(tmp_path) as url:
        query = await asyncio.create_subprocess_exec(*COMMAND, "query", "SELECT 41 + count() FROM runs", stdout=PIPE)
        states: list[str] = []
        async with aiohttp.ClientSession(url) as session:
            while query.returncode is None:
                async with session.get("/api/run/summary", params={"run_id": "one"}) as response:
                    states.append(response.headers["Lightningbus-Store"])
                await asyncio.sleep(0.05)
        assert query.returncode == 0 and query.stdout is not None and b"42" in await query.stdout.read()
        await _until(url, "finished")
        assert set(states) == {"finished"}


@pytest.mark.long
async def test_every_run_of_the_directory_is_listed_and_opens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    old, up, *_ = (_make_run(name) for name in ("old", "up", "new"))
    aside = old.path.rename(old.path.with_name("old-20261101-101500"))
    supervisor = await asyncio.create_subprocess_exec("sleep", "600", stdout=DEVNULL)
    async with _page(tmp_path) as url, aiohttp.ClientSession(url) as session:

        async def ask(path: str, run: str) -> tuple[str, Any]:
            async with session.get(f"/api/{path}", params={"run_id": run}) as response:
                return response.headers["Lightningbus-Store"], json.loads(await response.text())

        with serving(up.store) as store:
            up.write_endpoints(Endpoints(supervisor.pid, NO_BUS, without_secrets(store.url)))
            _, runs = await ask("runs", "")
            states = {run["run_id"]: run["state"] for run in runs}
            assert states == {"new": "finished", "up": "running", aside.name: "ended"}
            for run, state in ((aside.name, "finished"), ("up", "live"), ("new", "finished")):
                of_store, summary = await ask("run/summary", run)
                assert (of_store, [row["rollouts"] for row in summary]) == (state, [2]), run
                _, listed = await ask("run/rollouts", run)
                _, rollout = await ask(f"rollout?rollout_id={listed['rollouts'][0]['rollout_id']}", run)
                assert rollout["calls"], run
                assert (await ask("run/state", run))[1]["state"] == "finished", run
        supervisor.kill()
        await supervisor.wait()
        assert (await ask("run/summary", "up"))[0] == "finished", "it goes on from the files"
        with serving(up.store) as store, serving(aside / "store"):
            assert store.fetch_value("SELECT count() FROM runs") == 1, "nobody is kept out"


def test_only_directories_of_runs_are_other_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in (Path("store"), *(Path("runs") / name / "store" for name in ("a", "b", ".c"))):
        path.mkdir(parents=True)
        (path / "data").touch()
    Path("runs/latest").symlink_to("b")
    others = OtherRuns("lightningbus")
    assert [name for name in ("a", "b", ".c", "..", ".", "latest", "../runs/a", "") if others.has(name)] == ["a"]
    assert [run.run_id for run in others.list()] == ["a"]


async def test_a_second_page_says_where_the_first_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _make_run("one")
    async with _page(tmp_path) as url:
        again = await asyncio.create_subprocess_exec(*COMMAND, "ui", stderr=PIPE)
        _, text = await again.communicate()
        assert (again.returncode, text.decode().strip()) == (0, f"UI at {url} already")
    async with _page(tmp_path) as later:
        assert later.startswith("http://127.0.0.1:"), "an earlier page that has ended is no page"


def _make_run(name: str) -> RunDirectory:
    """A run that has ended; the latest."""
    run = RunDirectory(Path("runs").resolve() / name).create()
    with prepared(run.store) as store:
        seed_store.insert(store.sql, seed_store.run(name, steps=1, groups=1, samples=2))
    return run


@asynccontextmanager
async def _page(directory: Path) -> AsyncIterator[str]:
    """``lightningbus ui`` on the runs of a directory; yields its address."""
    ui = await asyncio.create_subprocess_exec(*COMMAND, "ui", "--port", "0", cwd=directory, stderr=PIPE)
    assert ui.stderr is not None
    try:
        line = (await ui.stderr.readline()).decode()
        assert line.startswith("UI at "), line
        yield line.split()[2]
    finally:
        ui.terminate()
        assert await ui.wait() == 0


async def _until(url: str, state: str, fits: Callable[[str], bool] = lambda text: True) -> str:
    """The answer about the runs once the page reads what ``state`` says."""
    async with aiohttp.ClientSession(url) as session, asyncio.timeout(HANG_SECONDS):
        while True:
            async with session.get("/api/runs") as response:
                text = await response.text()
                if response.headers["Lightningbus-Store"] == state and fits(text):
                    return text
            await asyncio.sleep(0.1)
