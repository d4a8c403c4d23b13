"""The page lists logs and checkpoints of a run, and sends logs and no other file of this machine."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from lightningbus.run.run_data import local_files
from lightningbus.run.run_data.local_files import LocalFiles
from lightningbus.run.run_directory.directory import RunDirectory
from lightningbus.store.ui.client import Reader
from lightningbus.store.ui.server import UiServer, serve

WEIGHTS = bytes(range(256)) * 8


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    """The latest run, with a log, a checkpoint, keys, and links that lead out."""
    monkeypatch.chdir(tmp_path)
    run = RunDirectory(Path("runs").resolve() / "one").create()
    (run.path / "logs" / "learner.log").write_text("<b>step 1</b> ß\n")
    (run.path / "logs" / 'a "b" ß.bin').write_bytes(b"<b>")
    (run.path / "checkpoints" / "step-000010").mkdir()
    (run.path / "checkpoints" / "step-000010" / 'a "b" ß.bin').write_bytes(WEIGHTS)
    (run.path / "work" / "store.json").write_text("a password")
    (run.path / "checkpoints.key").write_text("a key")
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key.log").write_text("a secret")
    (run.path / "logs" / "link.log").symlink_to(tmp_path / "secret" / "key.log")
    (run.path / "logs" / "folder").symlink_to(tmp_path / "secret")
    return run


@pytest.fixture
async def session(run: RunDirectory) -> AsyncIterator[aiohttp.ClientSession]:
    pages = UiServer(Reader(), "127.0.0.1", list, files=LocalFiles())
    async with serve(pages, "127.0.0.1", 0) as url, aiohttp.ClientSession(url) as session:
        yield session


async def list_files(session: aiohttp.ClientSession, run_id: str) -> dict[str, Any]:
    async with session.get("/api/run/files", params={"run_id": run_id}) as response:
        assert response.status == 200
        return dict(json.loads(await response.text()))


async def test_logs_are_read_and_checkpoints_are_listed(session: aiohttp.ClientSession, run: RunDirectory) -> None:
    listed = await list_files(session, "one")
    checkpoint = 'checkpoints/step-000010/a "b" ß.bin'
    assert listed["directory"] == str(run.path) and listed["num_left_out"] == 0
    assert {row["path"]: row["bytes"] for row in listed["files"]} == {
        "logs/learner.log": 17, 'logs/a "b" ß.bin': 3, checkpoint: len(WEIGHTS),
    }  # fmt: skip
    async with session.get("/api/run/file", params={"run_id": "one", "path": "logs/learner.log"}) as response:
        assert await response.text() == "<b>step 1</b> ß\n" and response.headers["X-Content-Type-Options"] == "nosniff"
        assert response.headers["Content-Type"] == "text/plain; charset=utf-8", "no text of an agent is markup"
        assert "default-src 'none'" in response.headers["Content-Security-Policy"]
    async with session.get("/api/run/file", params={"run_id": "one", "path": checkpoint}) as response:
        assert response.status == 404, "weights are their owner's alone, and every user of the machine reaches the page"
        assert WEIGHTS not in await response.read()
    async with session.get("/api/run/file", params={"run_id": "one", "path": 'logs/a "b" ß.bin'}) as response:
        assert await response.read() == b"<b>"
        assert response.headers["Content-Disposition"] == "attachment; filename*=UTF-8''a%20%22b%22%20%C3%9F.bin"


@pytest.mark.parametrize(
    ("run_id", "path"),
    [
        ("one", "logs/link.log"),
        ("one", "logs/folder/key.log"),
        ("one", "../../secret/key.log"),
        ("one", "logs/../../../secret/key.log"),
        ("one", "logs/../checkpoints.key"),
        ("one", "checkpoints.key"),
        ("one", "work/store.json"),
        ("one", "logs"),
        ("one", "/etc/passwd"),
        ("one", "logs/none.log"),
        ("../secret", "key.log"),
        ("..", "secret/key.log"),
        ("latest", "logs/learner.log"),
        (".", "one/logs/learner.log"),
        ("two", "logs/learner.log"),
    ],
)
async def test_no_other_file_is_sent(session: aiohttp.ClientSession, run_id: str, path: str) -> None:
    async with session.get("/api/run/file", params={"run_id": run_id, "path": path}) as response:
        assert response.status == 404
        assert json.loads(await response.text())["error"] == f"run {run_id!r} has no log {path!r} here"


async def test_a_folder_that_is_a_link_is_not_followed(session: aiohttp.ClientSession, run: RunDirectory) -> None:
    (run.path / "logs").rename(run.path / "logs-before")
    (run.path / "logs").symlink_to(Path("secret").resolve())
    assert all(row["path"].startswith("checkpoints/") for row in (await list_files(session, "one"))["files"])


async def test_old_files_are_counted(
    session: aiohttp.ClientSession, run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_files, "MAX_FILES", 1)
    listed = await list_files(session, "one")
    assert (len(listed["files"]), listed["num_left_out"]) == (1, 2)
    assert await list_files(session, "two") == {"directory": "", "files": [], "num_left_out": 0}


async def test_a_page_that_others_can_reach_has_no_files(run: RunDirectory) -> None:
    pages = UiServer(Reader(), "0.0.0.0", list, files=LocalFiles())
    async with serve(pages, "127.0.0.1", 0) as url, aiohttp.ClientSession(url) as session:
        assert (await list_files(session, "one"))["files"] == []
        async with session.get("/api/run/file", params={"run_id": "one", "path": "logs/learner.log"}) as response:
            assert response.status == 404
