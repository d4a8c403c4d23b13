"""The real Codex CLI and Claude Code against the real gateway: no call is refused, none is unrecorded.

``CODING_CLIS`` names a directory in which ``npm install @openai/codex @anthropic-ai/claude-code`` was run.
"""

import asyncio
import json
import os
import subprocess
from array import array
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from lightningbus.bus.client import Bus
from tests.polling import HANG_SECONDS
from tests.runners.chat_templates import STRICT, RenderingEngine
from tests.runners.test_coding_agents import called
from tests.runners.test_dialects import Desk, opened

CLIS = Path(os.environ.get("CODING_CLIS", "/nonexistent"))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (CLIS / "node_modules").is_dir(), reason="CODING_CLIS names no directory with the CLIs"),
]
DONE = [{"role": "assistant", "content": "done"}, {"finish_reason": "stop"}]
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c49444154789c63f8ffff3f0005fe02fe0def46b8"
    "0000000049454e44ae426082"
)


class SessionEngine(RenderingEngine):
    """Plays one answer after another, where the agent has the tools for it, and then says that it is done."""

    def __init__(self, steps: list[list[dict[str, Any]]]) -> None:
        super().__init__(STRICT, max_model_len=200_000)
        self.steps = steps
        self.tools: list[str] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        tools = [tool["function"]["name"] for tool in body.get("tools") or ()]
        self.tools = tools or self.tools
        self.script = self.steps.pop(0) if tools and self.steps else DONE
        return await super().answer(request)


async def run(desk: Desk, command: list[str], directory: Path, **variables: str) -> subprocess.CompletedProcess[bytes]:
    """Run a CLI in a directory, with a home of its own and without a network but the gateway."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(directory / "home"), **variables}
    (directory / "home").mkdir(exist_ok=True)
    return await asyncio.to_thread(
        subprocess.run, command, cwd=directory / "work", env=environment, capture_output=True, timeout=HANG_SECONDS,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A small repository with a picture."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "a.txt").write_text("one\n")
    (work / "a.png").write_bytes(PNG)
    subprocess.run(["git", "init", "-q"], cwd=work, check=True)
    return tmp_path


def check(desk: Desk, engine: SessionEngine, num_steps: int, done: "subprocess.CompletedProcess[bytes]") -> None:
    """Every answer of the engine is on record with its tokens, and every step was taken."""
    output = (done.stdout + done.stderr).decode(errors="replace")
    assert not engine.steps, f"the session ended early:\n{output[-3000:]}\n{engine.tools}"
    assert done.returncode == 0, output[-3000:]
    assert len(desk.calls) == len(engine.requests) >= num_steps, output[-3000:]
    assert all(array("I", call.response_ids) for call in desk.calls)
    assert not [span for span in desk.spans if span.status == "error"]


async def test_codex_runs_a_session(bus: Bus, directory: Path) -> None:
    steps = [
        called("exec_command", json.dumps({"cmd": "cat a.txt"}), "call_1"),
        called("exec_command", json.dumps({"cmd": "exit 3"}), "call_2"),
        called("exec_command", '{"cmd": ', "call_3"),
        called("exec_command", json.dumps({"cmd": "echo two > a.txt"}), "call_4"),
        called("view_image", json.dumps({"path": str(directory / "work" / "a.png")}), "call_5"),
    ]
    num_steps = len(steps)
    async with SessionEngine(steps).serving(bus) as engine, opened(bus) as desk:
        provider = f'{{name="lightningbus", base_url="{desk.url}/v1", env_key="OPENAI_API_KEY", wire_api="responses"}}'
        done = await run(
            desk,
            [
                str(CLIS / "node_modules" / ".bin" / "codex"), "exec", "--skip-git-repo-check",
                "--dangerously-bypass-approvals-and-sandbox", "-m", "policy", "-c", 'model_provider="lightningbus"',
                "-c", f"model_providers.lightningbus={provider}", "fix a.txt",
            ],
            directory,
            OPENAI_API_KEY=desk.key,
        )  # fmt: skip
    assert isinstance(engine, SessionEngine)
    check(desk, engine, num_steps, done)
    assert (directory / "work" / "a.txt").read_text() == "two\n"


async def test_claude_code_runs_a_session(bus: Bus, directory: Path) -> None:
    work = directory / "work"
    steps = [
        called("Read", json.dumps({"file_path": str(work / "a.txt")}), "toolu_1"),
        called("Read", json.dumps({"file_path": str(work / "a.png")}), "toolu_2"),
        called("Bash", json.dumps({"command": "exit 3", "description": "fails"}), "toolu_3"),
        called("Bash", '{"command": ', "toolu_4"),
        called("Agent", json.dumps({"description": "look", "prompt": "look at a.txt"}), "toolu_5"),
        called("Read", json.dumps({"file_path": str(work / "a.txt")}), "toolu_6"),  # by the other agent
        DONE,
        called("Edit", json.dumps({"file_path": str(work / "a.txt"), "old_string": "one", "new_string": "two"}), "7"),
    ]
    num_steps = len(steps)
    async with (
        SessionEngine(steps).serving(bus) as engine,
        opened(bus, model_aliases={"claude-*": "policy:small"}) as desk,
    ):
        done = await run(
            desk,
            [
                str(CLIS / "node_modules" / ".bin" / "claude"), "-p", "fix a.txt", "--model", "policy",
                "--permission-mode", "acceptEdits", "--allowedTools", "Bash,Read,Edit",
            ],
            directory,
            ANTHROPIC_BASE_URL=desk.url,
            ANTHROPIC_API_KEY=desk.key,
            CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
            DISABLE_TELEMETRY="1",
        )  # fmt: skip
    assert isinstance(engine, SessionEngine)
    check(desk, engine, num_steps, done)
    assert (work / "a.txt").read_text() == "two\n"
