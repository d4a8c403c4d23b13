"""Contents of Google's Gemini API as messages of a chat. Pure.

Source: https://ai.google.dev/api/caching#Content.
"""

import json
from base64 import b64decode
from mimetypes import guess_type
from typing import Any

from lightningbus.runners.protocol.dialects.base import input_of
from lightningbus.runners.protocol.dialects.gemini_fields import (
    BLOB,
    CONTENT,
    FILE_DATA,
    FUNCTION_CALL,
    FUNCTION_RESPONSE,
    PART,
    SYSTEM_INSTRUCTION,
    VENDOR_PARTS,
    read_list,
    read_object,
)
from lightningbus.runners.protocol.dialects.gemini_signature import to_standard_base64, unsign
from lightningbus.runners.protocol.message_parts import image_part, join_parts, left_out_part, text_part
from lightningbus.runners.protocol.token_history import TokenHistory
from lightningbus.schemas.trajectory.chat_messages import encode_sorted

USER_ROLES = ("user", "function", "tool")
TEXT_MEDIA = ("text/", "application/json")
RESULTS = ("output", "result")
"""Names by which clients wrap a function's text in the object that this API asks for."""


class Conversation:
    """Messages, to which contents are added one by one."""

    def __init__(self, history: TokenHistory) -> None:
        self.messages: list[dict[str, Any]] = []
        self.left_out: list[str] = []
        """Kinds of parts that the model does not get."""
        self._history = history
        self._open_calls: list[tuple[str, str]] = []
        """Id and name of each call of the last answer that has no result yet."""
        self._num_calls = 0
        self._sealed = self._visible = ""
        """Thoughts of the last answer: by their signatures, and as the client shows them."""
        self._sampled_ids: dict[bytes, list[str]] | None = None

    def add(self, content: Any) -> None:
        """Add a content; raise ValueError with a sentence for the agent."""
        fields = read_object(content, CONTENT)
        parts = [read_object(part, PART) for part in read_list(fields.get("parts"))]
        role = fields.get("role") or "user"
        if role == "model":
            self._add_answer(parts)
        elif role in USER_ROLES:
            self._add_input(parts)
        else:
            raise ValueError(f"a content has the role user or model, not {role!r}")

    def _add_answer(self, parts: list[dict[str, Any]]) -> None:
        """Add parts to the model's answer: clients keep a stream as one content for each of its events."""
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self.messages.append({"role": "assistant", "content": None})
            self._open_calls, self._sealed, self._visible = [], "", ""
        message = self.messages[-1]
        for part in parts:
            self._sealed += unsign(part.get("thoughtSignature"))
            if part.get("thought"):
                self._visible += str(part.get("text") or "")
            elif "functionCall" in part:
                message.setdefault("tool_calls", []).append(self._call(part["functionCall"]))
            elif "text" in part:
                message["content"] = (message["content"] or "") + str(part["text"])
            elif of_vendor := sorted(part.keys() & VENDOR_PARTS):
                self.left_out += of_vendor
            elif "thoughtSignature" not in part:
                raise ValueError("a part of the model has text or a functionCall")
        if thought := self._sealed or self._visible:
            message["reasoning"] = thought

    def _call(self, value: Any) -> dict[str, Any]:
        fields = read_object(value, FUNCTION_CALL)
        arguments, name = fields.get("args") or {}, str(fields.get("name") or "")
        id = str(fields.get("id") or self._find_sampled(arguments) or f"call_{self._num_calls}")
        self._num_calls += 1
        self._open_calls.append((id, name))
        sampled = self._history.sampled_arguments(id, arguments, input_of)
        text = json.dumps(arguments, ensure_ascii=False) if sampled is None else sampled
        return {"id": id, "type": "function", "function": {"name": name, "arguments": text}}

    def _find_sampled(self, arguments: Any) -> str | None:
        """Return the id of the earliest sampled call with these arguments: some clients send calls back without ids."""
        if self._sampled_ids is None:
            self._sampled_ids = {}
            for id, sampled in self._history.arguments.items():
                self._sampled_ids.setdefault(encode_sorted(input_of(sampled)), []).append(id)
        ids = self._sampled_ids.get(encode_sorted(arguments))
        return ids.pop(0) if ids else None

    def _add_input(self, parts: list[dict[str, Any]]) -> None:
        """Add results of functions, a message each, then the user's other parts."""
        if not parts:
            raise ValueError("a content of the user has no parts")
        for part in parts:
            if "functionResponse" in part:
                self._add_result(read_object(part["functionResponse"], FUNCTION_RESPONSE))
        if others := [_part(part) for part in parts if "functionResponse" not in part]:
            self.messages.append({"role": "user", "content": join_parts(others)})

    def _add_result(self, fields: dict[str, Any]) -> None:
        id, name = fields.get("id"), str(fields.get("name") or "")
        matching = [call for call in self._open_calls if call[0] == id] or [
            call for call in self._open_calls if call[1] == name
        ]
        if matching:
            self._open_calls.remove(matching[0])
            id = matching[0][0]
        media = [_part(read_object(part, PART)) for part in read_list(fields.get("parts"))]
        content = join_parts([text_part(_result_text(fields.get("response"))), *media])
        self.messages.append({"role": "tool", "tool_call_id": str(id or name), "content": content})


def system_text(instruction: Any) -> str:
    """Return the text of a system instruction; raise ValueError where it has anything else."""
    if isinstance(instruction, str):
        return instruction
    parts = read_list(read_object(instruction, SYSTEM_INSTRUCTION).get("parts"))
    texts = [_part(read_object(part, PART)) for part in parts]
    if any(part["type"] != "text" for part in texts):
        raise ValueError("systemInstruction is text; send images in contents")
    return str(join_parts(texts))


def _result_text(response: Any) -> str:
    """Return a function's result as text, out of the object that clients put around it; an error says so."""
    if isinstance(response, dict) and len(response) == 1:
        ((name, value),) = response.items()
        if isinstance(value, str) and name in RESULTS:
            return value
        if isinstance(value, str) and name == "error":
            return value if value.lower().startswith("error") else f"Error: {value}"
    return json.dumps({} if response is None else response, ensure_ascii=False)


def _part(part: dict[str, Any]) -> dict[str, Any]:
    """Convert a part of the user's, of a function's result or of a system instruction."""
    if "text" in part:
        return text_part(part["text"])
    if "inlineData" in part:
        return _inline(read_object(part["inlineData"], BLOB))
    if "fileData" in part:
        return _file(read_object(part["fileData"], FILE_DATA))
    known = ", ".join(sorted(part)) or "nothing"
    raise ValueError(f"a part with {known} is not known here; send text, inlineData, fileData or functionResponse")


def _inline(blob: dict[str, Any]) -> dict[str, Any]:
    kind, data = str(blob.get("mimeType") or ""), to_standard_base64(str(blob.get("data") or ""))
    if kind.startswith("image/"):
        return image_part(f"data:{kind};base64,{data}")
    if not kind.startswith(TEXT_MEDIA):
        return left_out_part(kind or "file", blob.get("displayName"))
    try:
        return text_part(b64decode(data, validate=True).decode())
    except ValueError:
        raise ValueError(f"inlineData of type {kind} is text in UTF-8 as base64") from None


def _file(file: dict[str, Any]) -> dict[str, Any]:
    uri = str(file.get("fileUri") or "")
    kind = str(file.get("mimeType") or guess_type(uri)[0] or "file")
    if not kind.startswith("image/"):
        return left_out_part(kind, file.get("displayName") or uri)
    if not uri.startswith(("http://", "https://")):
        raise ValueError(f"fileData.fileUri {uri!r} is not a URL of the web; send the image as inlineData")
    return image_part(uri)
