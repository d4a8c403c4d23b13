"""A page that is open while its run ends: it goes on from the files, and leaves them to whoever wants them."""

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import DEVNULL, PIPE

import aiohttp
import pytest

from common.flat_settings import without_secrets
from lightningbus.run.run_directory import Endpoints, RunDirectory
from tests import seed_store
from tests.store.conftest import prepared, serving

pytestmark = pytest.mark.integration

COMMAND = [sys.executable, "-P", "-m", "lightningbus"]
NO_BUS = "nats://127.0.0.1:9"


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
        subprocess.run, [*COMMAND, "query", "SELECT 41 + count() FROM runs"], capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 0 and "42" in ended.stdout, ended.stderr
    await _until(url, "finished")
    with serving(run.store) as store:
        seed_store.insert(store.sql, seed_store.run("two", steps=1, groups=1, samples=2), first=50_000)
        assert "one" in await _until(url, "gone")
    await _until(url, "finished", lambda text: '"two"' in text)
    ui.terminate()
    assert await ui.wait() == 0


async def _until(url: str, state: str, fits: Callable[[str], bool] = lambda text: True) -> str:
    """The answer about the runs once the page reads what ``state`` says."""
    async with aiohttp.ClientSession(url) as session, asyncio.timeout(30):
        while True:
            async with session.get("/api/runs") as response:
                text = await response.text()
                if response.headers["Lightningbus-Store"] == state and fits(text):
                    return text
            await asyncio.sleep(0.1)
