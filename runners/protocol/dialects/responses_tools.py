"""Tools of the Responses API as functions of a chat, and the model's calls as items of this API. Pure.

Source: https://platform.openai.com/docs/api-reference/responses/create, ``tools``.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lightningbus.runners.protocol.dialects.custom_tools import custom_function, custom_input
from lightningbus.runners.protocol.dialects.responses_client_tools import CLIENT_TOOLS, call_fields, client_function

OF_VENDOR = frozenset({
    "code_interpreter", "computer", "computer_use", "file_search", "image_generation", "mcp",
    "programmatic_tool_calling", "tool_search", "web_search",
})  # fmt: skip
"""Types of tools that run at the vendor, or are known to its models alone; a preview or a date may follow."""
DATED = re.compile(r"(_preview)?(_\d{4}_\d{2}_\d{2})?$")
FUNCTION_FIELDS = ("name", "description", "parameters", "strict")


@dataclass(frozen=True, slots=True)
class ToolName:
    """A tool as the agent names it."""

    name: str
    namespace: str = ""
    kind: str = "function"
    """Its type: function, custom (it takes free text instead of arguments), or that of a tool that the agent runs."""


class ResponsesTools:
    """The tools of one request, and the function that stands for each in the chat."""

    def __init__(self, tools: Iterable[Any] | None) -> None:
        """Convert tools; raise ValueError with a sentence for the agent.

        A namespace becomes its functions, a custom tool a function of one text, and a tool that the agent itself runs
        the function that the vendor's models know. Tools that run at the vendor are left out: an agent cannot always
        take them out itself.
        """
        self.functions: list[dict[str, Any]] = []
        self.left_out: list[str] = []
        """Types of the tools that are left out."""
        self._names: dict[str, ToolName] = {}
        self._functions_by_name: defaultdict[str, list[str]] = defaultdict(list)
        for tool in tools or ():
            self._add(tool)

    def _add(self, tool: Any, namespace: str = "") -> None:
        kind = tool.get("type") if isinstance(tool, dict) else None
        if not isinstance(kind, str):
            raise ValueError("a tool is an object with a type: function, custom or namespace")
        if kind == "namespace" and not namespace:
            number = len(self.functions)
            for inner in tool.get("tools") or ():
                self._add(inner, str(tool.get("name") or ""))
            if self.functions[number:] and tool.get("description"):
                _describe_namespace(self.functions[number]["function"], tool)
        elif kind in DESCRIBERS:
            name = ToolName(_name_of(tool), namespace, kind)
            function = DESCRIBERS[kind](tool)
            function["name"] = self._function_name(name)
            self._names[function["name"]] = name
            self._functions_by_name[name.name].append(function["name"])
            self.functions.append({"type": "function", "function": function})
        elif DATED.sub("", kind) in OF_VENDOR and not namespace:
            self.left_out.append(kind)
        else:
            raise ValueError(f"a tool of type {kind[:80]!r} is not known here; give the agent a function instead")

    def _function_name(self, name: ToolName) -> str:
        """Choose a function's name: the tool's own, after its namespace or kind where another tool has it."""
        other = self._names.get(name.name)
        prefix = name.namespace or (name.kind if other and other.kind != name.kind else "")
        return f"{prefix}__{name.name}" if other and prefix else name.name

    def function_of(self, name: Any, namespace: Any = "", kind: str = "function") -> str:
        """Find the function of a tool that an earlier call names; a tool that is gone keeps its name."""
        same = self._functions_by_name.get(name, []) if isinstance(name, str) else []
        exact = [function for function in same if self._names[function] == ToolName(name, namespace or "", kind)]
        near = [function for function in same if self._names[function].namespace == (namespace or "")]
        return next(iter(exact or near or same), str(name))

    def kind_of(self, function: str) -> str:
        """Return the kind of the tool that a function stands for."""
        return self._names[function].kind if function in self._names else "function"

    def choose(self, choice: Any) -> tuple[Any, list[dict[str, Any]]]:
        """Convert ``tool_choice``; return it with the functions that the model may call.

        Raises ValueError with a sentence for the agent.
        """
        kind = choice.get("type") if isinstance(choice, dict) else choice
        if not self.functions and (kind == "required" or kind in DESCRIBERS):
            raise ValueError(f"tool_choice {kind!r} asks for a call, and none of the request's tools runs here")
        if not isinstance(choice, dict):
            return choice, self.functions
        if kind == "allowed_tools":
            allowed = set(self._allowed(choice.get("tools") or ()))
            functions = [function for function in self.functions if function["function"]["name"] in allowed]
            if not functions and choice.get("mode") == "required":
                raise ValueError("tool_choice requires one of its allowed tools, and none of them runs here")
            return choice.get("mode") or "auto" if functions else "none", functions
        if kind not in DESCRIBERS:
            raise ValueError(f"a tool_choice of type {kind!r} is not known here: name a function or custom tool")
        name = self.function_of(_name_of(choice), choice.get("namespace"), str(kind))
        return {"type": "function", "function": {"name": name}}, self.functions

    def _allowed(self, tools: Iterable[Any]) -> Iterator[str]:
        for tool in tools:
            named = tool if isinstance(tool, dict) else {}
            if named.get("type") == "namespace":
                yield from (function for function, each in self._names.items() if each.namespace == named.get("name"))
            else:
                yield self.function_of(_name_of(named), named.get("namespace"), str(named.get("type")))

    def call_item(self, id: str, call_id: str, function: Mapping[str, Any]) -> dict[str, Any]:
        """Build the item of a call in the form of its tool: with a text, a field of its own, or arguments."""
        tool = self._names.get(str(function.get("name")), ToolName(str(function.get("name") or "")))
        arguments = str(function.get("arguments") or "")
        item = {"id": id, "call_id": call_id, "status": "completed"}
        if tool.kind in CLIENT_TOOLS:
            return item | call_fields(tool.kind, arguments)
        item["name"] = tool.name
        if tool.namespace:
            item["namespace"] = tool.namespace
        if tool.kind == "custom":
            return {**item, "type": "custom_tool_call", "input": custom_input(arguments)}
        return {**item, "type": "function_call", "arguments": arguments}


def _name_of(tool: Mapping[str, Any]) -> str:
    """Return the name of a tool; one that the agent runs is named by its type."""
    kind = tool.get("type")
    return str((kind if kind in CLIENT_TOOLS else tool.get("name")) or "")


def _describe_namespace(function: dict[str, Any], namespace: Mapping[str, Any]) -> None:
    """Begin the description of a namespace's first function with the description of the namespace."""
    description = f"Of the tools of {namespace.get('name')}: {namespace['description']}"
    function["description"] = "\n\n".join(filter(None, (description, function.get("description"))))


def _pick(tool: dict[str, Any]) -> dict[str, Any]:
    return {key: tool[key] for key in FUNCTION_FIELDS if tool.get(key) is not None}


DESCRIBERS: dict[Any, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "function": _pick,
    "custom": custom_function,
    **dict.fromkeys(CLIENT_TOOLS, client_function),
}
"""Descriptions of tools as functions, by the type of the tool."""
