"""Coding agents from npm with an MCP server, at the real gateway: each session is one path, and each tool is rendered.

``CODING_CLIS`` names a directory in which the agents are installed, as docs/coding-agents.md says. A real vLLM without
a model renders the chats by a template with definitions of tools, and parses the scripted answers. The answers are
sampled in tokens that no tokenizer makes of their texts. The test prints the table of the page.
"""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from lightningbus.bus.client import Bus
from lightningbus.inference.settings import InferenceSettings
from lightningbus.learner.transitions.prefix_tree import Detokenize
from lightningbus.learner.transitions.tokenizer import load_detokenizer
from lightningbus.run.pretrained.catalog import SMOLLM2
from lightningbus.run.pretrained.folder import provide_folder
from lightningbus.runners.gateway.call_parser import CallParser
from tests.inference.test_node_models_vllm import ready
from tests.polling import HANG_SECONDS
from tests.runners.chat_templates import HERMES
from tests.runners.coding_programs import PROGRAMS, Program, steps_of
from tests.runners.coding_sessions import CLIS, Session, gateway_statuses, judge, make_directory, run
from tests.runners.played_vllm import PlayedVllm, make_model
from tests.runners.test_dialects import opened

INSTALLED = [program for program in PROGRAMS if program.version]
NODE = CLIS / "node_modules" / "node" / "bin"
"""A newer Node.js than the machine's, for programs that need one."""
LEFT_OUT = frozenset({"web_search", "DeferredToolPlaceholder"})
"""Tools that run at the vendor, or that stand for no tool."""
ALIASES = {"claude-*": "policy:small", "gemini-*": "policy:small"}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.e2e,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not INSTALLED, reason="CODING_CLIS names no directory with the CLIs"),
]


@dataclass(frozen=True)
class Played:
    """A session of a program, and the tools that it offered."""

    program: Program
    session: Session
    steps_left: int
    num_changes: int
    """How often the list of tools was another than that of the call before: a server of tools has joined."""
    offered: set[str]
    unread: set[str]
    """Offered tools that the prompt of the call lacks."""
    text: str
    """Content of the file at the end."""
    output: str

    @property
    def is_whole(self) -> bool:
        """Whether each conversation is one path while its list of tools stays, with each tool in its prompts."""
        session = self.session
        return (
            session.num_paths == self.program.num_conversations + self.num_changes
            and session.breaks.total() == self.num_changes
            and not session.reasons
            and session.refused.keys() <= {"404"}  # an earlier Claude Code asks for HEAD of its base URL
            and not self.steps_left
            and not self.unread
            and self.text == "two\n"
        )

    def describe(self) -> str:
        """Describe the session as a row of the page's table."""
        session, program = self.session, self.program
        figures = (
            len(session.calls),
            session.num_paths,
            session.recomputed,
            f"{len(self.offered)}, {len(self.unread)}",
        )
        return f"| {program.package} {program.version} | " + " | ".join(map(str, figures)) + " |"


def name_tools(tools: Any) -> Iterator[str]:
    """Name the tools of a request in any of the four APIs."""
    for tool in tools or ():
        inner = tool.get("functionDeclarations") or (tool.get("tools") if tool.get("type") == "namespace" else None)
        if inner is not None:
            yield from name_tools(inner)
        else:
            yield str((tool.get("function") or tool).get("name") or tool.get("type"))


@pytest.fixture
def bodies(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Bodies of the calls as the programs send them."""
    seen: list[Any] = []
    parse = CallParser.parse

    def keep(parser: CallParser, api: Any, body: bytes, *more: Any) -> Any:
        seen.append(json.loads(body))
        return parse(parser, api, body, *more)

    monkeypatch.setattr(CallParser, "parse", keep)
    return seen


async def play(
    bus: Bus, engine: PlayedVllm, program: Program, path: Path, bodies: list[Any], detokenize: Detokenize, thought: str
) -> Played:
    """Run a program until it has no more to do."""
    path.mkdir()
    directory = make_directory(path)
    text = directory / "work" / "a.txt"
    engine.begin(steps_of(program, text, thought), thought)
    bodies.clear()
    before = gateway_statuses()
    async with opened(bus, HANG_SECONDS, model_aliases=ALIASES) as desk:
        command, more = program.start(program.executable, desk.environment, directory)
        try:
            _, output = await run(command, directory, **(desk.environment | more))
        except TimeoutError:
            output = "it does not end"
        session = judge(desk, detokenize, before)
    offered, unread, lists = set[str](), set[str](), list[set[str]]()
    for body, call in zip(bodies, session.calls, strict=False):
        names = set(name_tools(body.get("tools"))) - LEFT_OUT
        prompt = detokenize(memoryview(call.prompt_ids).cast("I").tolist())
        offered |= names
        known = [tool for tool in body.get("tools") or () if not tool.get("defer_loading")]
        lists += [set(name_tools(known))] if known else []
        unread |= {name for name in names if f'"name": "{name}"' not in prompt}
    num_changes = sum(earlier != later for earlier, later in pairwise(lists))
    return Played(program, session, len(engine.steps), num_changes, offered, unread, text.read_text(), output)


@pytest.mark.parametrize(
    ("parsers", "thought"), [({}, ""), ({"reasoning_parser": "qwen3"}, "I must think.")], ids=["plain", "thoughts"]
)
async def test_each_session_is_one_path(
    bus: Bus,
    tmp_path: Path,
    bodies: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    parsers: Mapping[str, str],
    thought: str,
) -> None:
    monkeypatch.setenv("PATH", f"{NODE}{os.pathsep}{os.environ['PATH']}")
    model = make_model(await provide_folder(SMOLLM2, print), tmp_path / "model", HERMES)
    detokenize = load_detokenizer(model)
    assert detokenize is not None
    engines: list[PlayedVllm] = []

    def open_engine(settings: InferenceSettings) -> PlayedVllm:
        engines.append(PlayedVllm(settings))
        return engines[-1]

    serving = partial(ready, model_path=model, frozen=True, tool_parser="hermes", **parsers)
    async with serving(bus, tmp_path, 1, open_engine):
        sessions = [
            await play(bus, engines[0], program, tmp_path / str(at), bodies, detokenize, thought)
            for at, program in enumerate(INSTALLED)
        ]
    print("\n".join(each.describe() for each in sessions))
    broken = [each for each in sessions if not each.is_whole]
    assert not broken, "\n".join(f"{each.describe()}\n{each}" for each in broken)
