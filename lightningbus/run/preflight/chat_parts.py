"""The parts of a chat that a model is to read: tools, roles, texts, names, thoughts and calls. Pure.

`mark` writes a text that nobody can guess into a part. A prompt without the text shows that its template leaves the
part out.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lightningbus.runners.protocol.message_parts import is_image
from lightningbus.schemas.trajectory.chat_messages import parse_arguments

Path = tuple[str | int, ...]
SCHEMA_MAPS = ("$defs", "definitions", "patternProperties", "properties")
"""Keywords whose value maps names to schemas."""
SCHEMA_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
"""Keywords whose value is a list of schemas."""
SUBSCHEMAS = ("additionalProperties", "items")
"""Keywords whose value may be a schema."""
SCALAR_TYPES = ("boolean", "integer", "number", "string")
ANNOTATIONS = ("$comment", "$id", "$schema", "examples", "title")
"""Keywords that a caller of the tool need not know."""
SPECIAL_KEYWORDS = frozenset(
    {*SCHEMA_MAPS, *SCHEMA_LISTS, *SUBSCHEMAS, *ANNOTATIONS, "description", "enum", "required"}
)
"""Keywords that `_schema_parts` and `_property_parts` handle by name, or leave out."""
Edit = Callable[[Any, str], Any]
"""Takes the value of a part and a mark; returns the value with the mark in it."""


@dataclass(frozen=True, slots=True)
class ChatPart:
    """A value in the body of a chat."""

    words: str
    """Words for the part in a sentence."""
    path: Path
    edit: Edit
    whole: Path = ()
    """Path of the object that is lost whole where this part is lost, such as a tool by its name."""
    tool: str = ""
    """Name of the tool that the part is the name of."""

    def mark(self, chat: dict[str, Any], mark: str) -> dict[str, Any]:
        """Return the chat with a mark in this part."""
        return dict(_replace(chat, self.path, lambda value: self.edit(value, mark)))


def list_parts(chat: dict[str, Any]) -> Iterator[ChatPart]:
    """Yield the parts that can hold a mark; a part whose loss includes others comes before them."""
    if chat.get("tool_choice") != "none":
        for number, tool in enumerate(chat.get("tools") or ()):
            yield from _tool_parts(tool["function"], ("tools", number))
    for number, message in enumerate(chat["messages"]):
        yield from _message_parts(message, number)


def list_unmarked_parts(chat: dict[str, Any]) -> Iterator[ChatPart]:
    """Yield the role of the first message of each role, and the images: a template need not print their mark."""
    roles = [message.get("role") for message in chat["messages"]]
    for role in dict.fromkeys(roles):
        path = ("messages", roles.index(role), "role")
        yield ChatPart(f"the role {role!r}", path, _exchange_role)
    for number, message in enumerate(chat["messages"]):
        for at, part in enumerate(message["content"] if isinstance(message.get("content"), list) else ()):
            if is_image(part):
                words = f"the image in part {at + 1} of message {number + 1} ({message.get('role')})"
                yield ChatPart(words, ("messages", number, "content", at), _replace_image)


def _tool_parts(function: dict[str, Any], path: Path) -> Iterator[ChatPart]:
    name, fields = f"the tool {function.get('name')!r}", (*path, "function")
    yield ChatPart(name, (*fields, "name"), _append, path, str(function.get("name")))
    if function.get("description"):
        yield ChatPart(f"the description of {name}", (*fields, "description"), _append)
    yield from _schema_parts(function.get("parameters"), (*fields, "parameters"), f"the parameters of {name}", name)


def _schema_parts(schema: Any, path: Path, words: str, tool: str) -> Iterator[ChatPart]:
    """Yield what a schema says at any depth: properties, definitions, alternatives, descriptions and keywords.

    A keyword is one part for each tool: a template that leaves it out does so everywhere.
    """
    if not isinstance(schema, dict):
        return
    for keyword, value in schema.items():
        at, of_keyword = (*path, keyword), f"the keyword {keyword!r} in {tool}"
        if keyword in SCHEMA_MAPS and isinstance(value, dict) and value:
            is_main = keyword == "properties"
            members = words if is_main else f"{keyword!r} of {words}"
            yield ChatPart(members, at, _add_property, path if is_main else at)
            for name, inner in value.items():
                yield from _property_parts(inner, (*at, name), f"{name!r} in {members}", tool)
        elif keyword in SCHEMA_LISTS and isinstance(value, list) and value:
            yield ChatPart(f"{keyword!r} of {words}", at, _add_alternative, at)
            for number, inner in enumerate(value):
                yield from _property_parts(inner, (*at, number), f"alternative {number + 1} of {words}", tool)
        elif keyword in SUBSCHEMAS and isinstance(value, dict):
            yield from _property_parts(value, at, f"the items of {words}", tool)
        elif keyword == "required" and isinstance(value, list) and value:
            yield ChatPart(of_keyword, at, _exchange_required)
        elif value in SCALAR_TYPES if keyword == "type" else keyword not in SPECIAL_KEYWORDS:
            yield ChatPart(of_keyword, at, _replace_value)


def _property_parts(schema: Any, path: Path, words: str, tool: str) -> Iterator[ChatPart]:
    if not isinstance(schema, dict):
        return
    if isinstance(schema.get("description"), str) and schema["description"]:
        yield ChatPart(f"the description of {words}", (*path, "description"), _append)
    if isinstance(schema.get("enum"), list):
        yield ChatPart(f"the values of {words}", (*path, "enum"), lambda values, mark: [*values, mark])
    yield from _schema_parts(schema, path, words, tool)


def _message_parts(message: dict[str, Any], index: int) -> Iterator[ChatPart]:
    words, path, content = f"message {index + 1} ({message.get('role')})", ("messages", index), message.get("content")
    if isinstance(content, str) and content:
        yield ChatPart(f"the text of {words}", (*path, "content"), _append)
    for at, part in enumerate(content if isinstance(content, list) else ()):
        if isinstance(part, dict) and isinstance(part.get("text"), str) and part["text"]:
            yield ChatPart(f"part {at + 1} of {words}", (*path, "content", at, "text"), _append)
    if message.get("name") and isinstance(message["name"], str):
        yield ChatPart(f"the name {message['name']!r} of {words}", (*path, "name"), _append)
    for field in ("reasoning", "reasoning_content"):
        if message.get(field) and isinstance(message[field], str):
            yield ChatPart(f"the thought of {words}", (*path, field), _append)
    for at, call in enumerate(message.get("tool_calls") or ()):
        function, fields = call["function"], (*path, "tool_calls", at, "function")
        name = f"the call of {function.get('name')!r} in {words}"
        yield ChatPart(name, (*fields, "name"), _append, (*path, "tool_calls", at))
        yield ChatPart(f"the arguments of {name}", (*fields, "arguments"), _add_argument)


def _append(text: str, mark: str) -> str:
    return f"{text}{mark}"


def _exchange_role(role: Any, mark: str) -> str:
    return "assistant" if role == "user" else "user"


def _replace_image(part: dict[str, Any], mark: str) -> dict[str, Any]:
    """Name an image that is not there: a model that reads images refuses it, any other gets the same note."""
    return {"type": "image_url", "image_url": {"url": mark}}


def _add_property(properties: dict[str, Any], mark: str) -> dict[str, Any]:
    return {**properties, mark: {"type": "string", "description": mark}}


def _add_alternative(schemas: list[Any], mark: str) -> list[Any]:
    return [*schemas, {"type": "string", "description": mark}]


def _exchange_required(names: list[Any], mark: str) -> list[Any]:
    """Name a property that is not there in place of the first: a template may mark properties as required."""
    return [*names[1:], mark]


def _replace_value(value: Any, mark: str) -> str:
    return mark


def _add_argument(arguments: Any, mark: str) -> str:
    parsed = parse_arguments(arguments or "{}") if isinstance(arguments, str | None) else arguments
    return json.dumps({**parsed, mark: mark}) if isinstance(parsed, dict) else f"{arguments}{mark}"


def _replace(value: Any, path: Sequence[str | int], edit: Callable[[Any], Any]) -> Any:
    """Return a copy of a JSON value with the value at ``path`` edited."""
    if not path:
        return edit(value)
    key, *rest = path
    changed: Any = list(value) if isinstance(value, list) else dict(value)
    changed[key] = _replace(value[key], rest, edit)
    return changed
