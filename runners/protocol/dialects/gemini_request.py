"""A request of Google's Gemini API as a chat. Pure.

Source: https://ai.google.dev/api/generate-content.
"""

from typing import Any

from lightningbus.runners.protocol.dialects.gemini_contents import Conversation, system_text
from lightningbus.runners.protocol.dialects.gemini_fields import (
    GEMINI,
    GENERATION_CONFIG,
    THINKING_CONFIG,
    read_list,
    read_object,
    to_camel,
)
from lightningbus.runners.protocol.dialects.gemini_schema import to_json_schema
from lightningbus.runners.protocol.dialects.gemini_tools import choose_tools

SAMPLING = {
    "candidateCount": "n", "frequencyPenalty": "frequency_penalty", "maxOutputTokens": "max_tokens",
    "presencePenalty": "presence_penalty", "seed": "seed", "stopSequences": "stop", "temperature": "temperature",
    "topK": "top_k", "topP": "top_p",
}  # fmt: skip
"""Fields of a chat by fields of ``generationConfig``."""
LEVELS = {
    "MINIMAL": "minimal", "LOW": "low", "MEDIUM": "medium", "HIGH": "high", "XHIGH": "xhigh",
    "THINKING_LEVEL_UNSPECIFIED": None,
}  # fmt: skip
JSON, ENUM, TEXT = "application/json", "text/x.enum", "text/plain"


def chat(body: dict[str, Any], conversation: Conversation, stream: bool) -> dict[str, Any]:
    """Convert a request to a chat, its contents by a new conversation.

    Raises ValueError with a sentence for the agent.
    """
    fields = read_fields(body)
    GEMINI.check_refused(fields)
    config = read_object(fields.get("generationConfig"), GENERATION_CONFIG)
    if not (contents := read_list(fields.get("contents"))):
        raise ValueError("the request has no contents")
    for content in contents:
        conversation.add(content)
    system = system_text(fields.get("systemInstruction"))
    messages = [*([{"role": "system", "content": system}] if system else ()), *conversation.messages]
    request = {name: value for name, value in fields.items() if name not in GEMINI.names}
    request |= {"model": str(fields.get("model") or "").removeprefix("models/"), "messages": messages}
    request |= {"stream": stream, "stream_options": {"include_usage": True}}
    request |= {SAMPLING[name]: value for name, value in config.items() if name in SAMPLING}
    request |= choose_tools(fields.get("tools"), fields.get("toolConfig"))
    request |= _format(config)
    if effort := _effort(read_object(config.get("thinkingConfig"), THINKING_CONFIG)):
        request["reasoning_effort"] = effort
    last = messages[-1]
    if last["role"] == "assistant" and "tool_calls" not in last:  # the answer goes on from these words
        request |= {"add_generation_prompt": False, "continue_final_message": True}
    return request


def read_fields(body: dict[str, Any]) -> dict[str, Any]:
    """Return a request's fields, those of this API by their names in camelCase."""
    known = {name: to_camel(name) for name in body}
    return {
        known[name] if known[name] in GEMINI.names else name: value for name, value in body.items() if value is not None
    }


def shows_thoughts(body: dict[str, Any]) -> bool:
    """Return whether a request asks for thoughts as parts of the answer."""
    config = read_object(read_fields(body).get("generationConfig"), GENERATION_CONFIG)
    return bool(read_object(config.get("thinkingConfig"), THINKING_CONFIG).get("includeThoughts"))


def unwrap_counted(body: Any) -> Any:
    """Return the request whose tokens are to be counted, as a whole or by its contents."""
    if not isinstance(body, dict):
        return body
    whole = body.get("generateContentRequest") or body.get("generate_content_request")
    if whole is None:
        return body
    if not isinstance(whole, dict):
        raise ValueError("generateContentRequest is a JSON object")
    return {**whole, "model": body.get("model") or whole.get("model")}


def _effort(thinking: dict[str, Any]) -> str | None:
    """Translate how much to think to a chat's field; the bound of the answer bounds thoughts too."""
    if thinking.get("thinkingBudget") == 0:
        return "none"
    level = str(thinking.get("thinkingLevel") or "THINKING_LEVEL_UNSPECIFIED").upper()
    if level not in LEVELS:
        raise ValueError(f"thinkingConfig.thinkingLevel {level!r} is not known here; known are {', '.join(LEVELS)}")
    return LEVELS[level]


def _format(config: dict[str, Any]) -> dict[str, Any]:
    """Translate the form of the answer to a chat's fields."""
    kind = str(config.get("responseMimeType") or TEXT)
    schema = to_json_schema(config.get("responseJsonSchema", config.get("responseSchema")))
    if kind not in (JSON, ENUM, TEXT):
        raise ValueError(f"generationConfig.responseMimeType {kind!r} is not known here; send {JSON}, {ENUM} or {TEXT}")
    if kind == TEXT:
        if schema is not None:
            raise ValueError(f"a schema of the answer needs the responseMimeType {JSON} or {ENUM}")
        return {}
    if kind == ENUM:
        values = schema.get("enum") if isinstance(schema, dict) else None
        if not values:
            raise ValueError(f"the responseMimeType {ENUM} needs a responseSchema with an enum")
        return {"structured_outputs": {"choice": [str(value) for value in values]}}
    if schema is None:
        return {"response_format": {"type": "json_object"}}
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}}
