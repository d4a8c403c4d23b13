"""What agents and runners write reaches people's terminals as text, and steers none of them."""

import asyncio
import json
import logging
import os
import pty
import subprocess
import sys
from typing import Any

import msgspec
import pytest

from lightningbus.bus.client import Bus
from lightningbus.common.observability.logs import HumanFormatter, JsonFormatter
from lightningbus.common.printable import CONTROL, printable_json, to_printable
from lightningbus.schemas import subjects
from tests.factories import batches
from tests.polling import HANG_SECONDS
from tests.seed_store import insert, run
from tests.store.conftest import StoreProcess, prepared

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\x7f\u202e[bold]b"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with prepared(tmp_path_factory.mktemp("store")) as built:
        for event in run("r", steps=1, groups=1, samples=1):
            insert(built.sql, [_hostile(event)])
        yield built


def _hostile(event: Any) -> Any:
    if type(event).__name__ == "SpanBatch":
        spans = tuple(
            msgspec.structs.replace(span, name=HOSTILE, status_message=HOSTILE)
            if span.scope == "agent"
            else span
            if span.call is None
            else msgspec.structs.replace(span, call=msgspec.structs.replace(span.call, token_texts=(), role=HOSTILE))
            for span in event.spans
        )
        end = event.end and msgspec.structs.replace(event.end, outcome="agent_error", reward=None, error=HOSTILE)
        return msgspec.structs.replace(event, spans=spans, end=end)
    return event


def on_a_terminal(*arguments: str) -> bytes:
    """What a command prints on a terminal; its own colours are off."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "dumb", "NO_COLOR": "1", "COLUMNS": "300"}
    process = subprocess.Popen([sys.executable, "-m", "lightningbus", *arguments], stdout=theirs, env=environment)
    os.close(theirs)
    printed = b""
    try:
        while piece := os.read(ours, 65536):
            printed += piece
    except OSError:  # the terminal's other end is closed
        pass
    os.close(ours)
    assert process.wait(HANG_SECONDS) == 0
    return printed


@pytest.mark.parametrize(
    "arguments",
    [
        ["query", "SELECT error, 'x' AS `\x1b[1m` FROM rollouts"],
        ["query", "SELECT error FROM rollouts", "--json"],
        ["query", "SELECT error FROM rollouts", "--csv"],
        ["report", "failures", "--csv"],
        ["rollouts", "show", "t0@p1.0"],
        ["rollouts", "show", "t0@p1.0", "--json"],
    ],
)
def test_what_an_agent_wrote_does_not_steer_the_terminal(store: StoreProcess, arguments: list[str]) -> None:
    printed = on_a_terminal(*arguments, "--sql", store.url).decode()
    assert "owned" in printed
    assert not CONTROL.search(printed.replace("\r\n", "\n")), ascii(printed)


def test_a_pipe_gets_all_of_json_back(store: StoreProcess) -> None:
    command = [
        sys.executable,
        "-m",
        "lightningbus",
        "query",
        "SELECT error FROM rollouts",
        "--json",
        "--sql",
        store.url,
    ]
    done = subprocess.run(command, capture_output=True, check=True, timeout=HANG_SECONDS)
    assert json.loads(done.stdout) == [{"error": HOSTILE}]


def test_markup_in_data_is_text(store: StoreProcess) -> None:
    assert b"[bold]b" in on_a_terminal("query", "SELECT error FROM rollouts", "--sql", store.url)


async def test_tail_shows_what_would_steer_the_terminal(bus: Bus, nats_url: str) -> None:
    command = [sys.executable, "-m", "lightningbus", "rollouts", "tail", "--bus", nats_url, "-n", "1"]
    pipes = {"stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE}
    tail = await asyncio.create_subprocess_exec(*command, **pipes)
    assert tail.stderr is not None
    async with asyncio.timeout(HANG_SECONDS):
        while b"following" not in await tail.stderr.readline():
            assert tail.returncode is None
        for part in batches("a", 0, outcome="agent_error"):
            hostile = _hostile(part)
            await bus.publish(subjects.rollout("train"), hostile, msg_id=f"a:{part.sequence}")
        out, _ = await tail.communicate()
    assert "owned" in out.decode() and not CONTROL.search(out.decode()), out


@pytest.mark.parametrize("form", [HumanFormatter(), JsonFormatter()])
def test_a_log_line_neither_steers_the_terminal_nor_forges_another(form: logging.Formatter) -> None:
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        caught: Any = sys.exc_info()
    record = logging.LogRecord("x", logging.WARNING, "", 0, "%s\n12:00:00 E forged: %s", (HOSTILE, HOSTILE), caught)
    line = form.format(record)
    assert "owned" in line and not CONTROL.search(line)
    assert all(more.startswith("    ") for more in line.splitlines()[1:])


def test_text_that_steers_nothing_is_printed_as_it_is() -> None:
    text = "tab\tnewline\nü 漢字 🙂 ‘quotes’"
    assert to_printable(text) == text
    assert json.loads(printable_json({HOSTILE: text})) == {HOSTILE: text}
    assert to_printable("\x1b\x7f\x9b") == "␛␡\ufffd"
