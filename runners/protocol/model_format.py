"""The messages that a model's chat template can render, and a conversation put into that form. Pure.

Templates differ: some refuse a system message that is not the first, some drop it in silence, some want roles to
alternate. `probes` are conversations that show what one does. Adapting keeps earlier turns as they are: the adapted
beginning of a conversation is the beginning of the adapted conversation.
"""

import base64
import json
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

from lightningbus.runners.protocol.message_parts import (
    SYSTEM_ROLES,
    has_images,
    is_image,
    join_parts,
    left_out_part,
    text_part,
)
from lightningbus.schemas.trajectory.chat_messages import parse_arguments

AFTER_ANSWERS = ("user", "tool")
"""Roles of messages that may become one message of the user."""
CALL_ID = "abcdefghi"
"""Id of a tool call in the form that the strictest templates want: nine letters or digits."""
IMAGE_SIDE = 64
"""Width and height, in pixels, of the image that shows whether a model reads images."""


@dataclass(frozen=True, slots=True)
class ModelFormat:
    """Messages that a model's chat template renders as they are."""

    renders_system: bool = True
    """A system message at the start."""
    renders_late_system: bool = True
    """A system message after others."""
    renders_repeated_user: bool = True
    """Two messages of the user, one after the other."""
    renders_tool_calls: bool = True
    """Calls of tools in an answer."""
    renders_tool_results: bool = True
    """Messages of tools."""
    reads_images: bool = True
    renders_names: bool = True
    """Names of those who speak, in messages of one role."""


def probes() -> dict[str, tuple[list[Any], list[Any]]]:
    """Return, by field of `ModelFormat`, two conversations: rendered to different tokens, the model has the field."""
    user, answer = _message("user", "one"), _message("assistant", "two")
    result = {**_message("tool", "three"), "tool_call_id": CALL_ID}

    def pair(*before: Any, role: str, after: Sequence[Any] = ()) -> tuple[list[Any], list[Any]]:
        first, second = ([*before, _message(role, text), *after] for text in ("red", "blue"))
        return first, second

    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{_png()}"}}
    with_image = [{"role": "user", "content": [text_part("one"), image]}]
    return {
        "renders_system": pair(role="system", after=[user]),
        "renders_late_system": pair(user, answer, user, role="system"),
        "renders_repeated_user": pair(role="user", after=[user]),
        "renders_tool_calls": ([user, _call("red"), result], [user, _call("blue"), result]),
        "renders_tool_results": (
            [user, _call("red"), result],
            [user, _call("red"), {**result, "content": "four"}],
        ),
        "reads_images": (with_image, [_message("user", "one")]),
        "renders_names": ([{**user, "name": "red"}], [{**user, "name": "blue"}]),
    }


def needed_fields(messages: Sequence[Any]) -> frozenset[str]:
    """Return the fields of `ModelFormat` that adapting a conversation depends on."""
    roles = ["system" if role in SYSTEM_ROLES else role for role in map(_role, messages)]
    others = [number for number, role in enumerate(roles) if role != "system"]
    fields = set()
    if roles and roles[0] == "system":
        fields |= {"renders_system", "renders_repeated_user"}
    if others and "system" in roles[others[0] :]:
        fields |= {"renders_late_system", "renders_repeated_user"}
    if any(role in AFTER_ANSWERS and other in AFTER_ANSWERS for role, other in pairwise(roles)):
        fields.add("renders_repeated_user")
    if "tool" in roles:
        fields.add("renders_tool_results")
    if any(_calls_of(message) for message in messages):
        fields.add("renders_tool_calls")
    if has_images(messages):
        fields.add("reads_images")
    if any(isinstance(message, dict) and message.get("name") for message in messages):
        fields.add("renders_names")
    return frozenset(fields)


def _role(message: Any) -> Any:
    return message.get("role") if isinstance(message, dict) else None


def adapt_messages(messages: Sequence[Any], model_format: ModelFormat) -> list[Any]:
    """Rewrite a conversation so that a model's template renders all of it.

    System messages at the start become one. One that the template cannot render in its place becomes text of the turn
    before it, else a user's turn. An image that the model cannot read becomes a note. Arguments of a tool call that are
    no JSON object are put into one. Calls and results of tools that the template leaves out become text. Results come
    in the order of their calls.
    """
    turns: list[list[Any]] = []  # messages that become one, together
    for message in _order_results(messages):
        _append(turns, _adapt_message(message, model_format) if isinstance(message, dict) else message, model_format)
    return [turn[0] if len(turn) == 1 else _merge(turn) for turn in turns]


def _order_results(messages: Sequence[Any]) -> list[Any]:
    """Put the results of an answer's calls in the order of the calls: many templates render no ids.

    Agents send results as tools end. Results with an id that no call of the answer has stay where they are.
    """
    ordered: list[Any] = []
    positions: dict[Any, int] = {}
    for is_result, group in groupby(messages, key=lambda message: _role(message) == "tool"):
        run = list(group)
        if is_result and all(str(message.get("tool_call_id")) in positions for message in run):
            run.sort(key=lambda message: positions[str(message.get("tool_call_id"))])
        ordered += run
        calls = _calls_of(run[-1])
        positions = {str(call.get("id")): number for number, call in enumerate(calls) if isinstance(call, dict)}
    return ordered


def _append(turns: list[list[Any]], message: Any, model_format: ModelFormat) -> None:
    """Add a message to the last turn or to a new one."""
    role, before = _role(message), _role(turns[-1][0]) if turns else None
    is_merged = role == before == "user" and not model_format.renders_repeated_user
    if role == "system":
        is_merged = before == "system" and len(turns) == 1
        is_rendered = model_format.renders_late_system if turns else model_format.renders_system
        if not is_merged and not is_rendered:
            message, is_merged = {**message, "role": "user"}, before in ("user", "tool")
    if is_merged:
        turns[-1].append(message)
    else:
        turns.append([message])


def _adapt_message(message: dict[str, Any], model_format: ModelFormat) -> dict[str, Any]:
    adapted = {**message, "role": "system"} if message.get("role") == "developer" else message
    if "reasoning_content" in adapted:  # vLLM's /tokenize knows a thought by its other name alone
        rest = {name: value for name, value in adapted.items() if name != "reasoning_content"}
        adapted = {**rest, "reasoning": adapted.get("reasoning") or adapted["reasoning_content"]}
    content = adapted.get("content")
    if not model_format.reads_images and isinstance(content, list) and any(map(is_image, content)):
        parts = [left_out_part("image") if is_image(part) else part for part in content]
        adapted = {**adapted, "content": join_parts(parts)}
    if isinstance(calls := adapted.get("tool_calls"), list):
        adapted = {**adapted, "tool_calls": [_with_object(call) for call in calls]}
        if calls and not model_format.renders_tool_calls:
            adapted = _write_calls(adapted)
    if adapted.get("role") == "tool" and not model_format.renders_tool_results:
        parts = [text_part("<tool_response>\n"), *_parts(adapted), text_part("\n</tool_response>")]
        adapted = _message("user", join_parts(parts, ""))
    return adapted


def _calls_of(message: Any) -> list[Any]:
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    return calls if isinstance(calls, list) else []


def _write_calls(message: dict[str, Any]) -> dict[str, Any]:
    """Write the calls of an answer into its content, in the form of Hermes that the engine's parser `hermes` reads."""
    parts = _parts(message)
    for call in message["tool_calls"]:
        function = call.get("function") if isinstance(call, dict) else None
        fields = function if isinstance(function, dict) else {}
        arguments = fields.get("arguments")
        arguments = parse_arguments(arguments) if isinstance(arguments, str) and arguments else arguments or {}
        text = json.dumps({"name": fields.get("name"), "arguments": arguments}, ensure_ascii=False)
        separator = "\n" if any(part.get("text") for part in parts) else ""
        parts.append(text_part(f"{separator}<tool_call>\n{text}\n</tool_call>"))
    rest = {name: value for name, value in message.items() if name != "tool_calls"}
    return {**rest, "content": join_parts(parts, "")}


def _with_object(call: Any) -> Any:
    """Put arguments that are no JSON object into one: engines parse them for the template, and refuse others."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(arguments := function.get("arguments"), str):
        return call
    if not arguments or isinstance(parse_arguments(arguments), dict):
        return call
    return {**call, "function": {**function, "arguments": json.dumps({"arguments": arguments}, ensure_ascii=False)}}


def _merge(turn: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Put the content of messages behind that of the first."""
    parts = _parts(turn[0])
    for message in turn[1:]:
        parts += [text_part("\n\n"), *_parts(message)]
    return {**turn[0], "content": join_parts(parts, "")}


def _parts(message: dict[str, Any]) -> list[Any]:
    """List the parts of a message; those of text alone become one part."""
    content = message.get("content")
    content = join_parts(content) if isinstance(content, list) else content
    return content if isinstance(content, list) else [text_part(content)]


def _call(word: str) -> dict[str, Any]:
    function = {"name": word, "arguments": json.dumps({"colour": word})}
    return {**_message("assistant", ""), "tool_calls": [{"id": CALL_ID, "type": "function", "function": function}]}


def _message(role: str, text: Any) -> dict[str, Any]:
    return {"role": role, "content": text}


def _png() -> str:
    """Draw a white image; returns it in base64."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = (b"\0" + b"\xff" * 3 * IMAGE_SIDE) * IMAGE_SIDE
    header = struct.pack(">IIBBBBB", IMAGE_SIDE, IMAGE_SIDE, 8, 2, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return base64.b64encode(png).decode()
