"""Tools of Anthropic's Messages API as functions of a chat. Pure.

Source: https://docs.anthropic.com/en/docs/agents-and-tools/tool-use/tool-search-tool.
"""

import json
from collections.abc import Iterable
from typing import Any

from lightningbus.runners.protocol.request_fields import MESSAGES_TOOL


class MessagesTools:
    """The tools of one request.

    A tool with ``defer_loading`` is not in the model's list. The model learns of it by the text of a result that
    refers to it, so the beginning of the prompt stays as it was.
    """

    def __init__(self, tools: Iterable[Any] | None) -> None:
        """Convert tools; raise ValueError with a sentence for the agent."""
        self._functions: dict[str, dict[str, Any]] = {}
        self._deferred: set[str] = set()
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
    if not isinstance(tool, dict) or tool.get("type") not in (None, "custom"):
        raise ValueError("a tool of the vendor's runs there, not here; give the agent one of its own")
    MESSAGES_TOOL.check_known(tool)
    function = {"name": tool.get("name"), "description": tool.get("description"), "parameters": tool["input_schema"]}
    function["strict"] = tool.get("strict")
    return {key: value for key, value in function.items() if value is not None}
