"""Files of a first project with a coding agent: the program's start, repositories with bugs, hidden tests."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from string import Template

from lightningbus.run.projects.repairs import REPAIRS, Repair
from lightningbus.run.projects.template import MODEL

NUM_HELDOUT = 2
GRADER = ["python3", "-I", "hidden/run_hidden.py"]
GRADE_SECONDS = 120
PROGRAMS = """Node.js has to lie in `/usr`, or its directory in `binds` of the runner's `workspace`.

"""


@dataclass(frozen=True, slots=True)
class CodingAgent:
    """Template of a coding agent: the file that starts it, and the packages that have it, with their versions."""

    title: str
    source: str
    packages: Mapping[str, str]
    python: str = ""
    """Interpreter that PyPI's packages need; empty: the packages are npm's."""

    @property
    def install(self) -> str:
        """The command that installs the program beside the agent's file."""
        if self.python:
            return f"{self.python} -m venv agent/.venv && agent/.venv/bin/pip install -r agent/requirements.txt"
        return "npm install --prefix agent"


CODING_AGENTS = {
    "claude-code": CodingAgent("Claude Code", "claude_code.py", {"@anthropic-ai/claude-code": "2.1.197"}),
    "codex": CodingAgent("Codex CLI", "codex.py", {"@openai/codex": "0.171.0"}),
    "mini-swe-agent": CodingAgent("mini-swe-agent", "mini_swe_agent.py", {"mini-swe-agent": "2.4.6"}, "python"),
    "openhands": CodingAgent(
        "OpenHands", "openhands_sdk.py", {"openhands-sdk": "1.58.2", "openhands-tools": "1.58.2"}, "python3.12"
    ),
    "opencode": CodingAgent("OpenCode", "opencode.py", {"opencode-ai": "1.18.33"}),
}


def render_coding_project(name: str) -> dict[str, str]:
    """Render the files of a project: text by path; raises KeyError for an unknown agent."""
    agent = CODING_AGENTS[name]
    values = {
        "framework": agent.title,
        "install": agent.install,
        "model": MODEL,
        "python": "\n    python_executable: agent/.venv/bin/python" if agent.python else "",
        "programs": "" if agent.python else PROGRAMS,
    }
    files = {name: Template(_read(name)).substitute(values) for name in ("run.yaml", "README.md")}
    files["agent/agent.py"] = _read(agent.source)
    if agent.python:
        lines = [f"{package}=={version}\n" for package, version in agent.packages.items()]
        files["agent/requirements.txt"] = "".join(lines)
    else:
        package = {"private": True, "dependencies": agent.packages}
        files["agent/package.json"] = json.dumps(package, indent=2) + "\n"
    tasks = [make_task(repair) for repair in REPAIRS]
    files["tasks.jsonl"], files["heldout.jsonl"] = "".join(tasks[:-NUM_HELDOUT]), "".join(tasks[-NUM_HELDOUT:])
    for repair in REPAIRS:
        files[f"workspaces/{repair.name}/{repair.name}.py"] = repair.source
        hidden = f"workspaces/hidden/{repair.name}/hidden"
        files[f"{hidden}/tests_of_task.py"] = repair.tests
        files[f"{hidden}/original/{repair.name}.py"] = repair.source
        files[f"{hidden}/run_hidden.py"] = _read("run_hidden.py")
    return files


def make_task(repair: Repair) -> str:
    """Make the line of a repair in a file of tasks."""
    grade = {
        "files": f"hidden/{repair.name}", "command": GRADER, "timeout_seconds": GRADE_SECONDS, "needs_result": True,
    }  # fmt: skip
    task = {
        "prompt": f"{repair.complaint} Mend {repair.name}.py in the current directory. Change nothing else.",
        "workspace": {"directory": repair.name, "grade": grade},
    }
    return json.dumps({"id": repair.name, "input": task}) + "\n"


def _read(name: str) -> str:
    return (resources.files("lightningbus.templates") / "coding" / name).read_text("utf-8")
