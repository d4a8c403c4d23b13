"""Coding agents from npm as lightningbus starts them, each with an MCP server beside its own tools."""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.runners.coding_sessions import CLIS
from tests.runners.session_engine import Step, call

SERVER = [sys.executable, str(Path(__file__).with_name("tool_desk.py"))]
"""Command of the MCP server."""
PROMPT = "mend a.txt with the parts that the desk has"
CONTEXT = 200_000
"""Tokens of the model, for programs that ask for them."""

Call = tuple[str, dict[str, Any]]
"""Name and arguments of a call."""
Start = tuple[list[str], dict[str, str]]
"""A command, and the variables that the program needs beside those of every agent."""


@dataclass(frozen=True)
class Program:
    """A coding agent: how it starts, and the calls of its tools."""

    name: str
    package: str
    start: Callable[[Path, Mapping[str, str], Path], Start]
    """Write settings below a directory; return the start of an executable whose variables are the runner's."""
    shell: Callable[[str], Call]
    """Build the call of its shell tool that runs a command."""
    edit: Callable[[Path], Call]
    """Build the call that replaces "one" by "two" in a file."""
    desk: Callable[[str, dict[str, Any]], Call] = lambda name, arguments: (name, arguments)
    """Build the call of a tool of the MCP server."""
    first: tuple[Step, ...] = ()
    """Steps before a tool of the MCP server is called."""
    reads_file: Callable[[Path], Call] | None = None
    """Build the call that has to read a file before an edit; None: the program does not insist on it."""
    is_earlier: bool = False
    """Whether an earlier version is run, of the directory ``earlier``."""
    num_conversations: int = 1
    """Conversations of a session, such as one more for a title."""

    @property
    def _modules(self) -> Path:
        return (CLIS / "earlier" if self.is_earlier else CLIS) / "node_modules"

    @property
    def version(self) -> str:
        """Version that is installed; empty: none."""
        manifest = self._modules / self.package / "package.json"
        return str(json.loads(manifest.read_text())["version"]) if manifest.exists() else ""

    @property
    def executable(self) -> Path:
        """Path of its command."""
        return self._modules / ".bin" / self.name


def write_json(path: Path, content: object) -> Path:
    """Write a file of settings, and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def start_claude(executable: Path, variables: Mapping[str, str], directory: Path) -> Start:
    """Start Claude Code; without a terminal it goes on before slow MCP servers are there, unless told to wait."""
    servers = write_json(directory / "mcp.json", {"mcpServers": {"desk": {"command": SERVER[0], "args": SERVER[1:]}}})
    command = [
        str(executable), "-p", PROMPT, "--model", "policy", "--mcp-config", str(servers), "--permission-mode",
        "acceptEdits", "--allowedTools", "Bash,Read,Edit,ToolSearch,WebFetch,mcp__desk",
    ]  # fmt: skip
    return command, {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "MCP_CONNECTION_NONBLOCKING": "false"}


def start_codex(executable: Path, variables: Mapping[str, str], directory: Path) -> Start:
    """Start Codex CLI; a server that is not ``required`` may join after the first calls."""
    url = variables["OPENAI_BASE_URL"]
    provider = f'{{name="lightningbus", base_url="{url}", env_key="OPENAI_API_KEY", wire_api="responses"}}'
    server = f"{{command={json.dumps(SERVER[0])}, args={json.dumps(SERVER[1:])}, required=true}}"
    command = [
        str(executable), "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "-m", "policy",
        "-c", 'model_provider="lightningbus"', "-c", f"model_providers.lightningbus={provider}",
        "-c", f"mcp_servers.desk={server}", PROMPT,
    ]  # fmt: skip
    return command, {}


def start_opencode(executable: Path, variables: Mapping[str, str], directory: Path) -> Start:
    """Start OpenCode."""
    options = {"baseURL": variables["OPENAI_BASE_URL"], "apiKey": variables["OPENAI_API_KEY"]}
    model = {"name": "policy", "tool_call": True, "limit": {"context": CONTEXT, "output": 4096}}
    provider = {"npm": "@ai-sdk/openai-compatible", "options": options, "models": {"policy": model}}
    configuration = {
        "provider": {"runner": provider}, "model": "runner/policy", "small_model": "runner/policy",
        "permission": "allow", "share": "disabled", "mcp": {"desk": {"type": "local", "command": SERVER}},
    }  # fmt: skip
    more = {
        "OPENCODE_CONFIG_CONTENT": json.dumps(configuration), "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1", "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
    }  # fmt: skip
    return [str(executable), "run", PROMPT], more


def start_gemini(executable: Path, variables: Mapping[str, str], directory: Path) -> Start:
    """Start Gemini CLI."""
    servers = {"desk": {"command": SERVER[0], "args": SERVER[1:], "trust": True}}
    settings = {"security": {"auth": {"selectedType": "gemini-api-key"}}, "mcpServers": servers}
    write_json(directory / "home" / ".gemini" / "settings.json", settings)
    return [str(executable), "-p", PROMPT, "-m", "policy", "--yolo", "--skip-trust"], {}


def start_qwen(executable: Path, variables: Mapping[str, str], directory: Path) -> Start:
    """Start qwen-code."""
    servers = {"desk": {"command": SERVER[0], "args": SERVER[1:], "trust": True}}
    settings = {"security": {"auth": {"selectedType": "openai"}}, "mcpServers": servers}
    write_json(directory / "home" / ".qwen" / "settings.json", settings)
    return [str(executable), "-p", PROMPT, "-m", "policy", "--yolo"], {}


def start_cline(executable: Path, variables: Mapping[str, str], directory: Path) -> Start:
    """Start Cline's CLI with the settings that ``cline auth`` and ``cline mcp install`` write."""
    data = directory / "home" / ".cline" / "data" / "settings"
    provider = {
        "provider": "openai-compatible", "apiKey": variables["OPENAI_API_KEY"], "model": "policy",
        "baseUrl": variables["OPENAI_BASE_URL"],
    }  # fmt: skip
    entry = {"settings": provider, "updatedAt": "2026-01-01T00:00:00.000Z", "tokenSource": "manual"}
    providers = {"openai-compatible": entry}
    write_json(
        data / "providers.json",
        {"version": 1, "lastUsedProvider": "openai-compatible", "modes": {}, "providers": providers},
    )
    transport = {"type": "stdio", "command": SERVER[0], "args": SERVER[1:]}
    write_json(data / "cline_mcp_settings.json", {"mcpServers": {"desk": {"transport": transport, "timeout": 60}}})
    return [str(executable), "-P", "openai-compatible", "-m", "policy", PROMPT], {}


def run_bash(command: str) -> Call:
    """Call the shell tool of Claude Code."""
    return "Bash", {"command": command, "description": "runs"}


def edit_by_claude(path: Path) -> Call:
    """Call the edit tool of Claude Code."""
    return "Edit", {"file_path": str(path), "old_string": "one", "new_string": "two"}


def run_codex(command: str) -> Call:
    """Call the shell tool of Codex."""
    return "exec_command", {"cmd": command}


def edit_by_codex(path: Path) -> Call:
    """Call the shell tool of Codex: the program offers no tool for edits to models that it does not know."""
    return run_codex(f"sed -i s/one/two/ {path.name}")


WANTED = "select:mcp__desk__find_part,mcp__desk__order_part,mcp__desk__reserve_part"
PROGRAMS = (
    Program(
        "claude", "@anthropic-ai/claude-code", start_claude, run_bash, edit_by_claude,
        first=(
            call("ToolSearch", query="select:WebFetch", max_results=2),
            call("ToolSearch", query=WANTED, max_results=5),
        ),
    ),
    Program(
        "claude", "@anthropic-ai/claude-code", start_claude, run_bash, edit_by_claude,
        first=(call("WebFetch", url="http://127.0.0.1:9/", prompt="what is there?"),), is_earlier=True,
    ),
    Program("codex", "@openai/codex", start_codex, run_codex, edit_by_codex),
    Program("codex", "@openai/codex", start_codex, run_codex, edit_by_codex, is_earlier=True),
    Program(
        "opencode", "opencode-ai", start_opencode,
        lambda command: ("bash", {"command": command, "description": "runs"}),
        lambda path: ("edit", {"filePath": str(path), "oldString": "one", "newString": "two"}),
        num_conversations=2,
    ),
    Program(
        "gemini", "@google/gemini-cli", start_gemini,
        lambda command: ("run_shell_command", {"command": command}),
        lambda path: (
            "replace", {"file_path": str(path), "old_string": "one", "new_string": "two", "instruction": "mend it"},
        ),
    ),
    Program(
        "qwen", "@qwen-code/qwen-code", start_qwen,
        lambda command: ("run_shell_command", {"command": command, "is_background": False}),
        lambda path: ("edit", {"file_path": str(path), "old_string": "one", "new_string": "two"}),
        desk=lambda name, arguments: ("tool_call", {"name": f"mcp__desk__{name}", "arguments": arguments}),
        first=(call("tool_search", query=WANTED),),
        reads_file=lambda path: ("read_file", {"file_path": str(path)}),
    ),
    Program(
        "cline", "cline", start_cline,
        lambda command: ("run_commands", {"commands": [command]}),
        lambda path: ("editor", {"path": str(path), "old_text": "one", "new_text": "two"}),
    ),
)  # fmt: skip


def steps_of(program: Program, path: Path, thought: str = "") -> list[Step]:
    """List the answers of a session that mends a file.

    They call tools of the program and of the MCP server, two tools at once, and tools that fail.
    """
    where = {"field": "material", "any_of": [{"field": "kind", "equals": "bolt"}]}
    part = {"number": "P-1", "size": {"width": {"value": 1.5, "unit": "mm"}}, "tags": ["steel", "\u00d8 12"]}

    def ask(text: str, *calls: Call) -> Step:
        compact = [
            (name, json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))) for name, arguments in calls
        ]
        return Step(text, compact, thought=thought)

    reading = [ask("", program.reads_file(path))] if program.reads_file else []
    return [
        ask("I look at it.", program.shell("cat a.txt")),
        *(Step(step.text, step.calls, thought=thought) for step in program.first),
        ask("", program.desk("find_part", {"where": where, "limit": 3})),
        ask("", program.desk("order_part", {"number": "P-9"})),
        ask("Both.", program.shell("ls"), program.desk("reserve_part", {"part": part})),
        ask("", program.shell("exit 3")),
        *reading,
        ask("I change it.", program.edit(path)),
        ask("", program.shell("cat a.txt")),
    ]
