"""Files of a first project, by framework: agent, tasks, run file, README. Pure, but for reading the templates."""

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from string import Template
from typing import Any

from lightningbus.run.pretrained.catalog import PretrainedModel

MODEL = "Qwen/Qwen3-0.6B"
DOWNLOAD = f"hf download {MODEL} --local-dir model"
NUM_TASKS, NUM_HELDOUT = 512, 64
PYTHON_RUNNER = 'entrypoint: "agent:solve", python_executable: .venv/bin/python'


@dataclass(frozen=True, slots=True)
class Framework:
    """Template of a framework's agent, with its packages and start command."""

    title: str
    source: str
    """File of the agent among the templates."""
    packages: dict[str, str]
    """Version of each package that it needs."""
    is_python: bool = True


FRAMEWORKS = {
    "langgraph": Framework("LangGraph", "langgraph.py", {"langgraph": "1.2.22", "langchain-openai": "1.7.3"}),
    "openai-agents": Framework("the OpenAI Agents SDK", "openai_agents.py", {"openai-agents": "0.24.0"}),
    "autogen": Framework("AutoGen", "autogen.py", {"autogen-agentchat": "0.7.5", "autogen-ext[openai]": "0.7.5"}),
    "node": Framework("Node.js", "node.js", {"openai": "7.57.0"}, is_python=False),
}
"""Frameworks whose agent points at a model to download."""
PLAIN = "openai"
"""Template in plain Python with OpenAI's client. It creates its own model, so it trains on any machine."""


def render_project(framework: str, pretrained: PretrainedModel | None = None) -> dict[str, str]:
    """Render the files of a project: text by name; raises KeyError for an unknown framework.

    ``pretrained`` is the model of a plain project that does not make one; its directory is ``model``.
    """
    examples = read_call_example() if pretrained is not None else []
    tasks, heldout = make_tasks(NUM_TASKS, NUM_HELDOUT, seed=0, examples=examples)
    files = {"tasks.jsonl": tasks, "heldout.jsonl": heldout}
    if pretrained is not None:
        return {"agent.py": _read("plain", "agent.py")} | _render("pretrained", {"model": pretrained.title}) | files
    if framework == PLAIN:
        return {name: _read("plain", name) for name in ("agent.py", "model.py", "run.yaml", "README.md")} | files
    return _render_real(FRAMEWORKS[framework]) | files


def list_commands(framework: str, has_model: bool = False, install: str = "") -> list[str]:
    """Return the commands of a project, in order: make or fetch the model, or check the one it has; train, look.

    ``install``: command that installs the agent, where that is no framework's.
    """
    of_framework = FRAMEWORKS.get(framework)
    if install:
        prepare = f"{install} && {DOWNLOAD}"
    elif has_model:
        prepare = "lightningbus train -c run.yaml --dry-run"
    else:
        prepare = f"{_install_command(of_framework)} && {DOWNLOAD}" if of_framework is not None else "python model.py"
    return [prepare, "lightningbus train -c run.yaml", "lightningbus ui"]


def _install_command(framework: Framework) -> str:
    return "python -m venv .venv && .venv/bin/pip install -r requirements.txt" if framework.is_python else "npm install"


def read_call_example() -> list[dict[str, str]]:
    """Return the messages that show a call before each question to a pretrained model: it has never seen one.

    They end with the call: after the answer to a result, a small model says a number at once, and calls less.
    """
    example: list[dict[str, str]] = json.loads(_read("pretrained", "call_example.json"))
    return example


def make_tasks(num_tasks: int, num_heldout: int, seed: int, examples: list[dict[str, str]]) -> tuple[str, str]:
    """Make training and held-out arithmetic tasks, each with the examples; no pair of numbers is in both."""
    rng = random.Random(seed)
    pairs = rng.sample(
        [(left, right) for left in range(10, 100) for right in range(10, left + 1)], num_tasks + num_heldout
    )
    lines = [_make_task(rng, number, *pair, examples) for number, pair in enumerate(pairs)]
    return "".join(lines[:num_tasks]), "".join(lines[num_tasks:])


def _make_task(rng: random.Random, number: int, left: int, right: int, examples: list[dict[str, str]]) -> str:
    results = {"plus": left + right, "minus": left - right, "times": left * right}
    word, answer = rng.choice(list(results.items()))
    question: dict[str, Any] = {"question": f"what is {left} {word} {right} ?", "answer": str(answer)}
    if examples:
        question["examples"] = examples
    return json.dumps({"id": f"task-{number}", "input": question}) + "\n"


def _render_real(framework: Framework) -> dict[str, str]:
    agent = "agent.py" if framework.is_python else "agent.js"
    files = {agent: _read("real", framework.source)}
    if framework.is_python:
        files["requirements.txt"] = "".join(f"{name}=={number}\n" for name, number in framework.packages.items())
    else:
        package = {"private": True, "type": "module", "dependencies": framework.packages}
        files["package.json"] = json.dumps(package, indent=2) + "\n"
    values = {
        "framework": framework.title,
        "agent": agent,
        "install": _install_command(framework),
        "model": MODEL,
        "runner": PYTHON_RUNNER if framework.is_python else "command: [node, agent.js]",
    }
    return files | _render("real", values)


def _render(folder: str, values: Mapping[str, str]) -> dict[str, str]:
    return {name: Template(_read(folder, name)).substitute(values) for name in ("run.yaml", "README.md")}


def _read(folder: str, name: str) -> str:
    return (resources.files("lightningbus.templates") / folder / name).read_text("utf-8")
