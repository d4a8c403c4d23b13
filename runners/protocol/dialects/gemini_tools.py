"""Functions of Google's Gemini API as tools of a chat. Pure.

Source: https://ai.google.dev/gemini-api/docs/function-calling.
"""

import json
from typing import Any

from lightningbus.runners.protocol.dialects.gemini_fields import (
    FUNCTION_CALLING_CONFIG,
    FUNCTION_DECLARATION,
    TOOL,
    TOOL_CONFIG,
    read_list,
    read_object,
    to_camel,
)
from lightningbus.runners.protocol.dialects.gemini_schema import to_json_schema

MODES = frozenset({"ANY", "AUTO", "MODE_UNSPECIFIED", "NONE", "VALIDATED"})


def choose_tools(tools: Any, tool_config: Any) -> dict[str, Any]:
    """Return the fields ``tools`` and ``tool_choice`` of a chat; raise ValueError with a sentence for the agent."""
    functions = [function for tool in read_list(tools) for function in _functions(tool)]
    config = read_object(read_object(tool_config, TOOL_CONFIG).get("functionCallingConfig"), FUNCTION_CALLING_CONFIG)
    mode, allowed = str(config.get("mode") or "AUTO").upper(), read_list(config.get("allowedFunctionNames"))
    if mode not in MODES:
        raise ValueError(f"functionCallingConfig.mode {mode!r} is not known here; known are {', '.join(sorted(MODES))}")
    if allowed and mode not in ("ANY", "VALIDATED"):
        raise ValueError("functionCallingConfig.allowedFunctionNames needs the mode ANY or VALIDATED")
    if unknown := [name for name in allowed if name not in [function["name"] for function in functions]]:
        raise ValueError(
            f"functionCallingConfig.allowedFunctionNames has {unknown[0]!r}, and the request declares no such function"
        )
    if allowed:
        functions = [function for function in functions if function["name"] in allowed]
    if not functions:
        if mode == "ANY":
            raise ValueError("functionCallingConfig.mode 'ANY' needs functions, and the request declares none")
        return {}
    if mode == "VALIDATED":
        functions = [{**function, "strict": True} for function in functions]
    choice = {"tool_choice": "required" if mode == "ANY" else "none"} if mode in ("ANY", "NONE") else {}
    return {"tools": [{"type": "function", "function": function} for function in functions], **choice}


def _functions(tool: Any) -> list[dict[str, Any]]:
    """Convert the functions that a tool declares."""
    for name, value in tool.items() if isinstance(tool, dict) else ():
        if to_camel(name) not in TOOL.honoured and value is not None:
            raise ValueError(f"tools.{name} runs at the vendor, not here; give the agent a function of its own")
    declarations = read_list(read_object(tool, TOOL).get("functionDeclarations"))
    return [_to_function(read_object(each, FUNCTION_DECLARATION)) for each in declarations]


def _to_function(declaration: dict[str, Any]) -> dict[str, Any]:
    name = declaration.get("name")
    if not isinstance(name, str) or not name:
        raise ValueError("functionDeclarations have a function without a name")
    description = str(declaration.get("description") or "")
    if (result := _schema(declaration, "response", "responseJsonSchema")) is not None:
        described = f"Returns JSON of this schema: {json.dumps(result, ensure_ascii=False)}"
        description = f"{description}\n\n{described}" if description else described
    parameters = _schema(declaration, "parameters", "parametersJsonSchema")
    function: dict[str, Any] = {"name": name, "description": description} if description else {"name": name}
    return {**function, "parameters": {"type": "object", "properties": {}} if parameters is None else parameters}


def _schema(declaration: dict[str, Any], name: str, json_name: str) -> Any:
    """Return the JSON schema of a field that has a form for Google's `Schema` and one for JSON schemas."""
    return to_json_schema(declaration.get(json_name, declaration.get(name)))
