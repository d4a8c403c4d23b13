"""Tools of the Responses API that the agent itself runs: their functions, and their calls as items of their own. Pure.

Source: https://platform.openai.com/docs/guides/tools-shell and https://platform.openai.com/docs/guides/tools-apply-patch.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lightningbus.runners.protocol.dialects.client_tools import ClientTool, text_properties
from lightningbus.schemas.trajectory.chat_messages import parse_arguments

LOCAL = {"type": "local"}
EDITS = ("create_file", "update_file", "delete_file")


@dataclass(frozen=True, slots=True)
class ItemTool:
    """A tool whose calls are items of their own."""

    tool: ClientTool
    name: str
    """The field that calls have in place of arguments."""
    read: Callable[[str], dict[str, Any]]
    """Reads the field from arguments; a model may have written any text."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """Fields that each call has beside it."""


def _read_object(arguments: str) -> dict[str, Any]:
    parsed = parse_arguments(arguments)
    return parsed if isinstance(parsed, dict) else {}


def _list_texts(value: Any) -> list[str]:
    """Return a list of texts, or one text as a list."""
    texts = [value] if isinstance(value, str) else value
    return texts if isinstance(texts, list) and all(isinstance(text, str) for text in texts) else []


def _pick(known: Mapping[str, Any], kind: type, *names: str) -> dict[str, Any]:
    return {name: known[name] for name in names if type(known.get(name)) is kind}


def _read_shell_action(arguments: str) -> dict[str, Any]:
    """Read commands; arguments that are none are the command itself, at which the shell will fail."""
    known = _read_object(arguments)
    return {"commands": _list_texts(known.get("commands")) or [arguments]} | _pick(
        known, int, "timeout_ms", "max_output_length"
    )


def _read_exec_action(arguments: str) -> dict[str, Any]:
    """Read a program and its arguments; others are the program itself, which no system has."""
    known = _read_object(arguments)
    action = {"type": "exec", "command": _list_texts(known.get("command")) or [arguments], "env": {}}
    return action | _pick(known, int, "timeout_ms") | _pick(known, str, "working_directory")


def _read_patch_operation(arguments: str) -> dict[str, Any]:
    """Read an operation; arguments that are none are an update of the directory, which every editor refuses."""
    known = _read_object(arguments)
    kind, path = known.get("type"), known.get("path")
    if kind not in EDITS or not isinstance(path, str) or not path:
        return {"type": "update_file", "path": ".", "diff": arguments}
    if kind == "delete_file":
        return {"type": kind, "path": path}
    diff = known.get("diff")
    return {"type": kind, "path": path, "diff": diff if isinstance(diff, str) else ""}


def _texts(description: str) -> dict[str, Any]:
    return {"type": "array", "items": {"type": "string"}, "description": description}


TIMEOUT = {"timeout_ms": {"type": "integer", "description": "time limit in milliseconds"}}
CLIENT_TOOLS = {
    "shell": ItemTool(
        ClientTool(
            "Run commands in a shell.",
            {
                "commands": _texts("commands to run, in order"),
                **TIMEOUT,
                "max_output_length": {"type": "integer", "description": "most characters of output to return"},
            },
            ("commands",),
        ),
        "action",
        _read_shell_action,
        {"environment": LOCAL},
    ),
    "local_shell": ItemTool(
        ClientTool(
            "Run a program.",
            {"command": _texts("program and its arguments"), **text_properties("working_directory"), **TIMEOUT},
            ("command",),
        ),
        "action",
        _read_exec_action,
    ),
    "apply_patch": ItemTool(
        ClientTool(
            "Create, update or delete a file.",
            {
                "type": {"type": "string", "enum": list(EDITS)},
                **text_properties("path"),
                "diff": {
                    "type": "string",
                    "description": (
                        "for create_file: the lines of the file, each after +; for update_file: hunks after @@, with "
                        "- before removed, + before added and a space before other lines"
                    ),
                },
            },
            ("type", "path"),
        ),
        "operation",
        _read_patch_operation,
    ),
}
"""Tools that the client runs, by type."""
CALLS = {f"{kind}_call": kind for kind in CLIENT_TOOLS}
"""Kinds of tools by the type of a call's item."""
OUTPUTS = frozenset(f"{kind}_output" for kind in CALLS)
"""Types of items with what a tool gave back."""


def client_function(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Describe such a tool as a function without name; raise ValueError with a sentence for the agent."""
    known = CLIENT_TOOLS[tool["type"]].tool
    environment: dict[str, Any] = tool.get("environment") or LOCAL
    where = environment.get("type")
    if where != "local":
        raise ValueError(
            f"a {tool['type']} with the environment {str(where)[:80]!r} runs at the vendor, not here; give it "
            "the environment 'local' and run its calls in the agent"
        )
    skills = [
        f"- {skill.get('name')} ({skill.get('path')}): {skill.get('description')}"
        for skill in environment.get("skills") or ()
    ]
    lines = [known.description, *(["Skills, each with instructions in its directory:"] if skills else []), *skills]
    return {"description": "\n".join(lines), "parameters": known.schema}


def call_fields(kind: str, arguments: str) -> dict[str, Any]:
    """Return the fields of a call's item that stand in place of its name and arguments."""
    tool = CLIENT_TOOLS[kind]
    return {"type": f"{kind}_call", tool.name: tool.read(arguments), **tool.more}


def write_arguments(sent_back: Any) -> str:
    """Write the arguments of a call that was sent back in an item, and that was not sampled here."""
    known = sent_back if isinstance(sent_back, dict) else {}
    return json.dumps({name: value for name, value in known.items() if value is not None}, ensure_ascii=False)


def output_text(item: Mapping[str, Any]) -> str:
    """Write for the model what a tool gave back: texts, and how each command or the patch ended."""
    output = item.get("output")
    parts = [_chunk_text(chunk) for chunk in output] if isinstance(output, list) else [str(output or "")]
    if item.get("type") == "apply_patch_call_output":
        parts.insert(0, str(item.get("status") or ""))
    return "\n".join(filter(None, parts))


def _chunk_text(chunk: Any) -> str:
    known = chunk if isinstance(chunk, dict) else {}
    outcome = known.get("outcome") or {}
    end = "timed out" if outcome.get("type") == "timeout" else f"exit code {outcome.get('exit_code')}"
    texts = (str(known.get(name) or "").rstrip("\n") for name in ("stdout", "stderr"))
    return "\n".join(filter(None, (*texts, f"[{end}]")))
