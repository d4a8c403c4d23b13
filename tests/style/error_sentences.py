"""The error sentences of the code, and those of docs/troubleshooting.md."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("bus", "store", "inference", "learner", "runners", "auditor", "graders", "lightningbus")
ERRORS = frozenset({
    "AddressError", "AgentStartError", "AuditorError", "BusError", "CheckpointError", "CredentialsError",
    "DlqLimitExceededError", "EngineBusyError", "EngineError", "EmbeddedEngineError", "LearnerError", "MigrationError",
    "StoreUnreachableError", "StreamFullError", "TaskFileError", "UserError", "exit_with", "refuse_result",
})  # fmt: skip
"""Classes whose message users read, and the functions that end a process with one."""
GAP = "…"


def sentence_of(node: ast.expr) -> str:
    """The fixed words of a message, with ``…`` for what varies; empty where nothing is fixed."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else GAP for part in node.values)
    return ""


def sentences_in(source: str) -> Iterator[str]:
    """Each message that a module raises or exits with."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute) and node.args:
            name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            sentence = sentence_of(node.args[0]) if name in ERRORS else ""
            if sentence.strip(f"{GAP}:; "):
                yield " ".join(sentence.replace("`", "").split())


def collect_sentences() -> dict[str, list[str]]:
    """Package -> its sentences, in order and once each."""
    return {
        package: list(
            dict.fromkeys(
                sentence
                for path in sorted((ROOT / package).rglob("*.py"))
                if "templates" not in path.parts
                for sentence in sentences_in(path.read_text())
            )
        )
        for package in PACKAGES
    }


def list_rows() -> set[str]:
    """The first cell of each row of the page."""
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    return {match[1] for match in re.finditer(r"^\| `(.+?)` \| .+ \|$", page, re.M)}
