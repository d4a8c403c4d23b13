"""Tools of Anthropic's Messages API as functions of a chat. Pure.

Source: https://docs.anthropic.com/en/docs/agents-and-tools/tool-use/tool-search-tool.
"""

import json
import re
from collections.abc import Iterable
from typing import Any

from lightningbus.runners.protocol.dialects.client_tools import ClientTool, text_properties
from lightningbus.runners.protocol.request_fields import MESSAGES_TOOL

DATE = re.compile(r"_\d{8}$")
"""Suffix of the type of a tool that the vendor's models know."""


LINES: dict[str, dict[str, Any]] = {
    "insert_line": {"type": "integer", "description": "line after which the text is inserted; 0: at the beginning"},
    "view_range": {"type": "array", "items": {"type": "integer"}, "description": "first and last line to view"},
}
CLIENT_TOOLS = {
    "bash": ClientTool(
        "Run a command in a shell that keeps its state.",
        {**text_properties("command"), "restart": {"type": "boolean", "description": "start the shell anew"}},
    ),
    "text_editor": ClientTool(
        "View, create and edit files.",
        {
            "command": {"type": "string", "enum": ["view", "create", "str_replace", "insert"]},
            **text_properties("path", "file_text", "old_str", "new_str", "insert_text"),
            **LINES,
        },
        ("command", "path"),
    ),
    "memory": ClientTool(
        "View, create, edit, rename and delete the files of a memory that outlasts the conversation.",
        {
            "command": {"type": "string", "enum": ["view", "create", "str_replace", "insert", "delete", "rename"]},
            **text_properties("path", "file_text", "old_str", "new_str", "insert_text", "old_path", "new_path"),
            **LINES,
        },
        ("command",),
    ),
}
"""Tools by type, without the date. Source: https://docs.anthropic.com/en/docs/agents-and-tools/tool-use/overview."""


class MessagesTools:
    """The tools of one request.

    A tool with ``defer_loading`` is not in the model's list. The model learns of it by the text of a result that
    refers to it, so the beginning of the prompt stays as it was.
    """

    def __init__(self, tools: Iterable[Any] | None) -> None:
        """Convert tools; raise ValueError with a sentence for the agent."""
        self._functions: dict[str, dict[str, Any]] = {}
        self._deferred: set[str] = set()
        self.left_out: list[str] = []
        """Types of content in the conversation that the model does not get."""
        for tool in tools or ():
            function = _to_function(tool)
            name = str(function["name"])
            self._functions[name] = function
            if tool.get("defer_loading"):
                self._deferred.add(name)
        if self._functions and len(self._deferred) == len(self._functions):
            raise ValueError("all tools have defer_loading, so the model knows of none: leave it out of one of them")

    def list_loaded(self, chosen: Any = None) -> list[dict[str, Any]]:
        """List the tools that the model knows from the beginning, and the one that it has to call."""
        return [
            {"type": "function", "function": function}
            for name, function in self._functions.items()
            if name not in self._deferred or name == chosen
        ]

    def describe(self, name: str) -> str:
        """Describe a tool to the model as its template describes those of the list: by name and schema, as JSON."""
        function = self._functions.get(name)
        if function is None:
            return f"The tool {name} is not among the tools of this request."
        return json.dumps({"type": "function", "function": function}, ensure_ascii=False)


def _to_function(tool: Any) -> dict[str, Any]:
    kind = str(tool.get("type") or "custom") if isinstance(tool, dict) else ""
    if (known := CLIENT_TOOLS.get(DATE.sub("", kind))) is not None:
        tool = {"name": tool.get("name"), "description": known.description, "input_schema": known.schema}
    elif kind != "custom":
        raise ValueError(f"a tool of type {kind[:80]!r} runs at the vendor, not here; give the agent one of its own")
    MESSAGES_TOOL.check_known(tool)
    function = {"name": tool.get("name"), "description": tool.get("description"), "parameters": tool["input_schema"]}
    function["strict"] = tool.get("strict")
    return {key: value for key, value in function.items() if value is not None}
