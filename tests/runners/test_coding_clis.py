"""The real Codex CLI, Claude Code and OpenCode against the real gateway: no call is refused, none is unrecorded.

``CODING_CLIS`` names a directory in which
``npm install @openai/codex @anthropic-ai/claude-code opencode-ai`` was run.
"""

import json
from pathlib import Path

import pytest

from lightningbus.bus.client import Bus
from lightningbus.runners.gateway.handler import UNSEEN
from tests.polling import HANG_SECONDS
from tests.runners.coding_sessions import CLIS, Session, claude, codex, gateway_statuses, judge, make_directory, run
from tests.runners.session_engine import DELEGATED, SessionEngine, Step, call
from tests.runners.test_dialects import opened

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (CLIS / "node_modules").is_dir(), reason="CODING_CLIS names no directory with the CLIs"),
]
INTERRUPTED = Step("I look at it once more, and then at what the", is_interrupted=True)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return make_directory(tmp_path)


def check(session: Session, engine: SessionEngine, num_turns: int, breaks: dict[str, int]) -> None:
    """No call was refused but for a full context, each is on record, and none lacks tokens without a reason."""
    assert not engine.steps and not engine.num_refused and not engine.unknown, (engine.steps, engine.unknown)
    assert session.refused["400"] == engine.num_full and session.refused.keys() <= {"400", "404", "499"}
    assert session.refused["404"] <= 2, "Claude Code asks for HEAD of its base URL when it starts"
    assert session.reasons == {UNSEEN: 1}, "that of the answer amid which the agent was interrupted"
    assert len(session.calls) + 1 == len(engine.requests) and len(session.calls) >= num_turns
    assert engine.num_summaries and session.breaks == breaks
    print(f"{len(session.calls)} calls, breaks {dict(session.breaks)}, {session.recomputed} tokens computed again")


async def test_claude_code_runs_a_session(bus: Bus, directory: Path) -> None:
    work = directory / "work"
    path = str(work / "a.txt")
    first = [
        call("Read", file_path=path),
        call("Bash", command="exit 3", description="fails"),
        Step(calls=[("Bash", '{"command": ')]),
        call("Read", file_path=str(work / "a.png")),
        Step("I change it.", [("Edit", json.dumps({"file_path": path, "old_string": "one", "new_string": "two"}))]),
        call("Agent", description="look", prompt=DELEGATED, subagent_type="general-purpose"),
        Step(calls=[("Read", json.dumps({"file_path": path})), ("Bash", json.dumps({"command": "cat a.txt"}))]),
        Step(calls=[("Bash", "[1]")]),
        *[call("Bash", command=f"cat long.txt # {number}") for number in range(6)],  # until the context is full
        call("Edit", file_path=path, old_string="two", new_string="three"),
        INTERRUPTED,
    ]
    second = [
        call("Read", file_path=path),
        call("Edit", file_path=path, old_string="three", new_string="four"),
        call("Bash", command="cat a.txt"),
    ]
    before = gateway_statuses()
    async with (
        SessionEngine(first, [call("Read", file_path=path)], max_model_len=20_000).serving(bus) as engine,
        opened(bus, HANG_SECONDS, model_aliases={"claude-*": "policy:small"}) as desk,
    ):
        assert isinstance(engine, SessionEngine)
        command, variables = claude(desk, "-p", "mend a.txt")
        _, output = await run(command, directory, engine.is_amid, **variables)
        assert engine.is_amid.is_set(), output[-3000:]
        engine.steps = second
        command, variables = claude(desk, "--continue", "-p", "go on")
        status, output = await run(command, directory, **variables)
    assert status == 0, output[-3000:]
    assert (work / "a.txt").read_text() == "four\n"
    session = judge(desk, engine.detokenize, before)
    check(session, engine, 20, {"compacted": engine.num_summaries})
    assert session.num_paths == 2 + engine.num_summaries, "one of each agent, and one after each compaction"


async def test_codex_runs_a_session(bus: Bus, directory: Path) -> None:
    work = directory / "work"
    first = [
        call("exec_command", cmd="cat a.txt"),
        call("exec_command", cmd="exit 3"),
        Step(calls=[("exec_command", '{"cmd": ')]),
        call("view_image", path=str(work / "a.png")),
        call("spawn_agent", message=DELEGATED),
        Step("I change it.", [("exec_command", json.dumps({"cmd": "echo two > a.txt"}))]),
        *[call("exec_command", cmd=f"cat long.txt # {number}") for number in range(8)],
        call("exec_command", cmd="echo three > a.txt"),
        INTERRUPTED,
    ]
    second = [
        call("exec_command", cmd="cat a.txt"),
        call("exec_command", cmd="echo four > a.txt"),
        call("exec_command", cmd="cat a.txt"),
    ]
    before = gateway_statuses()
    async with (
        SessionEngine(first, [call("exec_command", cmd="cat a.txt")], max_model_len=40_000).serving(bus) as engine,
        opened(bus, HANG_SECONDS) as desk,
    ):
        assert isinstance(engine, SessionEngine)
        command, variables = codex(desk, 15_000, "mend a.txt")
        _, output = await run(command, directory, engine.is_amid, **variables)
        assert engine.is_amid.is_set(), output[-3000:]
        engine.steps = second
        command, variables = codex(desk, 15_000, "resume", "--last", "go on")
        status, output = await run(command, directory, **variables)
    assert status == 0, output[-3000:]
    assert (work / "a.txt").read_text() == "four\n"
    session = judge(desk, engine.detokenize, before)
    # The call that summarises has no tools: its prompt is rendered anew, with a malformed call as the template has it.
    check(session, engine, 20, {"compacted": engine.num_summaries, "template": 1})
    assert session.num_paths == 2 + engine.num_summaries, "one of each agent, and one after each compaction"


async def test_opencode_runs_a_session(bus: Bus, directory: Path) -> None:
    work = directory / "work"
    path = str(work / "a.txt")
    first = [
        call("read", filePath=path),
        call("bash", command="exit 3", description="fails"),
        Step(calls=[("bash", '{"command": ')]),
        call("read", filePath=str(work / "a.png")),
        Step("I change it.", [("edit", json.dumps({"filePath": path, "oldString": "one", "newString": "two"}))]),
        call("task", description="look", prompt=DELEGATED, subagent_type="general"),
        Step(calls=[("read", json.dumps({"filePath": path})), ("bash", json.dumps({"command": "ls"}))]),
        *[call("bash", command=f"cat long.txt # {number}", description="reads") for number in range(8)],
        call("edit", filePath=path, oldString="two", newString="three"),
        INTERRUPTED,
    ]
    second = [
        call("read", filePath=path),
        call("edit", filePath=path, oldString="three", newString="four"),
        call("bash", command="cat a.txt", description="reads"),
    ]
    before = gateway_statuses()
    async with (
        SessionEngine(first, [call("read", filePath=path)]).serving(bus) as engine,
        opened(bus, HANG_SECONDS) as desk,
    ):
        assert isinstance(engine, SessionEngine)
        options = {"baseURL": f"{desk.url}/v1", "apiKey": desk.key}
        model = {"name": "policy", "tool_call": True, "limit": {"context": 32_768, "output": 4096}}
        provider = {"npm": "@ai-sdk/openai-compatible", "options": options, "models": {"policy": model}}
        configuration = {
            "provider": {"runner": provider}, "model": "runner/policy", "small_model": "runner/policy",
            "permission": "allow", "share": "disabled",
        }  # fmt: skip
        variables = {
            "OPENCODE_CONFIG_CONTENT": json.dumps(configuration), "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1", "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
        }  # fmt: skip
        opencode = [str(CLIS / "node_modules" / ".bin" / "opencode"), "run"]
        _, output = await run([*opencode, "mend a.txt"], directory, engine.is_amid, **variables)
        assert engine.is_amid.is_set(), output[-3000:]
        engine.steps = second
        status, output = await run([*opencode, "--continue", "go on"], directory, **variables)
    assert status == 0, output[-3000:]
    assert (work / "a.txt").read_text() == "four\n"
    session = judge(desk, engine.detokenize, before)
    # Its summary comes back as an answer of the model's, to a question that the model was never asked.
    check(session, engine, 20, {"compacted": engine.num_summaries})
    assert session.num_paths == 3 + 2 * engine.num_summaries, "of title and agents, each summary and what follows it"
