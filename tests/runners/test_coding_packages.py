"""mini-swe-agent and the OpenHands SDK from PyPI at the real gateway, installed as docs/coding-agents.md says."""

import json
from pathlib import Path

import pytest

from lightningbus.bus.client import Bus
from tests.runners.coding_sessions import CLIS, Session, gateway_statuses, judge, make_directory, run
from tests.runners.conftest import AGENTS
from tests.runners.session_engine import SessionEngine, Step, call
from tests.runners.test_dialects import opened

pytestmark = pytest.mark.slow
MINI, OPENHANDS = CLIS / "mini" / "bin" / "mini", CLIS / "openhands" / "bin" / "python"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return make_directory(tmp_path)


def check(session: Session, engine: SessionEngine, num_paths: int = 1, breaks: dict[str, int] | None = None) -> None:
    """No call was refused, each is on record with its tokens, and each conversation is one path."""
    assert not engine.steps and not engine.num_refused and not engine.unknown, (engine.steps, engine.tools)
    assert not session.refused and not session.reasons
    assert len(session.calls) == len(engine.requests)
    assert (session.num_paths, session.breaks) == (num_paths, breaks or {})
    print(f"{len(session.calls)} calls, breaks {dict(session.breaks)}, {session.recomputed} tokens computed again")


@pytest.mark.skipif(not MINI.exists(), reason="CODING_CLIS names no directory with mini-swe-agent")
async def test_mini_swe_agent_runs_a_session(bus: Bus, directory: Path) -> None:
    work = directory / "work"
    steps = [
        call("bash", command="cat a.txt"),
        call("bash", command="exit 3"),
        Step(calls=[("bash", '{"command": ')]),
        Step("I change it.", [("bash", json.dumps({"command": "sed -i s/one/two/ a.txt"}))]),
        Step("I think."),  # without a call
        Step(calls=[("bash", json.dumps({"command": "cat a.txt"})), ("bash", json.dumps({"command": "git status"}))]),
        *[call("bash", command=f"head -{number} long.txt") for number in range(1, 14)],
        call("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"),
    ]
    before = gateway_statuses()
    async with SessionEngine(steps).serving(bus) as engine, opened(bus) as desk:
        assert isinstance(engine, SessionEngine)
        status, output = await run(
            [str(MINI), "-m", "openai/policy", "-t", "mend a.txt", "-y", "--exit-immediately", "-o", "out.json"],
            directory,
            OPENAI_API_KEY=desk.key, OPENAI_BASE_URL=f"{desk.url}/v1", MSWEA_CONFIGURED="true",
            MSWEA_COST_TRACKING="ignore_errors", MSWEA_GLOBAL_CONFIG_DIR=str(directory / "home"),
        )  # fmt: skip
    assert status == 0, output[-3000:]
    assert (work / "a.txt").read_text() == "two\n"
    session = judge(desk, engine.detokenize, before)
    check(session, engine)


@pytest.mark.skipif(not OPENHANDS.exists(), reason="CODING_CLIS names no directory with the OpenHands SDK")
async def test_openhands_runs_a_session(bus: Bus, directory: Path) -> None:
    work = directory / "work"
    path = str(work / "a.txt")
    replacing = {"command": "str_replace", "path": path, "old_str": "one", "new_str": "two"}
    steps = [
        call("terminal", command="cat a.txt"),
        call("terminal", command="false"),
        Step(calls=[("terminal", '{"command": ')]),
        Step("I change it.", [("file_editor", json.dumps(replacing))]),
        Step(calls=[("terminal", json.dumps({"command": "cat a.txt"})), ("terminal", json.dumps({"command": "ls"}))]),
        *[call("terminal", command=f"head -{number} long.txt") for number in range(1, 14)],
        call("finish", message="done"),
    ]
    before = gateway_statuses()
    async with SessionEngine(steps).serving(bus) as engine, opened(bus) as desk:
        assert isinstance(engine, SessionEngine)
        status, output = await run(
            [str(OPENHANDS), str(AGENTS / "openhands_coder.py"), "mend a.txt"],
            directory,
            OPENAI_API_KEY=desk.key, OPENAI_BASE_URL=f"{desk.url}/v1", OPENHANDS_SUPPRESS_BANNER="1",
        )  # fmt: skip
    assert status == 0, output[-3000:]
    assert (work / "a.txt").read_text() == "two\n"
    # The condenser asks in a conversation of its own, and the agent goes on with its summary.
    check(judge(desk, engine.detokenize, before), engine, num_paths=3, breaks={"compacted": 1})
