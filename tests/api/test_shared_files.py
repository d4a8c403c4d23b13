"""The files of a run that has ended are opened once for all who ask: sessions, commands, pages."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import lightningbus as lb
from lightningbus.bus.directory_lock import READER_LOCK, find_reader
from lightningbus.common.processes.procfs import is_alive
from lightningbus.run.run_data.files_process import UNUSED_SECONDS, UNUSED_VARIABLE, parse_seconds
from tests.polling import HANG_SECONDS, until
from tests.store.conftest import serving

pytestmark = pytest.mark.integration

QUERY = [sys.executable, "-P", "-m", "lightningbus", "query", "--run", "first", "SELECT 41 + count() FROM runs"]


@pytest.fixture
def runs(seeded: Path, tmp_path: Path) -> Path:
    """A copy, which no other test reads."""
    return Path(shutil.copytree(seeded, tmp_path / "runs", symlinks=True))


def query(runs: Path, seconds: str) -> str:
    """Return the output of ``lightningbus query``; its files stay open for ``seconds``."""
    done = subprocess.run(
        QUERY, cwd=runs.parent, env={**os.environ, UNUSED_VARIABLE: seconds}, capture_output=True, timeout=HANG_SECONDS
    )
    return done.stdout.decode() + done.stderr.decode()


def reader_of(runs: Path) -> int:
    """The process that has the files open; 0 for none."""
    pid = (runs / "first" / "store" / READER_LOCK).read_text().partition("\n")[0]
    return int(pid or 0)


def test_all_who_ask_share_one_process(runs: Path) -> None:
    with lb.connect(runs=runs) as session, lb.connect(runs=runs) as other:
        assert len(session.runs()) == len(other.runs()) == 1
        process = reader_of(runs)
        assert "42" in query(runs, "0") and reader_of(runs) == process
        session.close()
        assert len(other.runs()) == 1 and reader_of(runs) == process
    until(lambda: is_alive(process), False)


def test_the_next_command_finds_the_files_open(runs: Path) -> None:
    assert "42" in query(runs, "600"), "and it ends, whoever reads its output"
    process = reader_of(runs)
    assert is_alive(process)
    assert "42" in query(runs, "600") and reader_of(runs) == process
    with lb.connect(runs=runs) as session:
        assert len(session.runs()) == 1 and reader_of(runs) == process
    os.kill(process, signal.SIGKILL)
    until(lambda: is_alive(process), False)
    assert "42" in query(runs, "0"), "one that was killed is none"


def test_whoever_writes_the_files_gets_them_and_a_session_goes_on_afterwards(runs: Path) -> None:
    store = runs / "first" / "store"
    with lb.connect(runs=runs) as session:
        assert len(session.runs()) == 1
        with serving(store):
            assert find_reader(store) == ""
            with pytest.raises(lb.UserError, match="another process has opened the files of run first"):
                session.runs()
        assert len(session.runs()) == 1


def test_a_run_that_is_removed_stays_removed(runs: Path) -> None:
    assert "42" in query(runs, "600")
    process = reader_of(runs)
    shutil.rmtree(runs / "first")
    until(lambda: is_alive(process), False)
    assert not (runs / "first").exists()


@pytest.mark.parametrize(
    ("text", "seconds"), [("", UNUSED_SECONDS), ("5", 5.0), ("0", 0.0), ("-1", UNUSED_SECONDS), ("x", UNUSED_SECONDS)]
)
def test_the_seconds_for_which_unused_files_stay_open(text: str, seconds: float) -> None:
    assert parse_seconds(text) == seconds
