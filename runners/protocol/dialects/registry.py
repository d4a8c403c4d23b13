"""Dialects by route."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from lightningbus.runners.protocol.dialects import anthropic, base, gemini
from lightningbus.runners.protocol.dialects.anthropic import AnthropicDialect
from lightningbus.runners.protocol.dialects.base import Dialect, OpenAIDialect
from lightningbus.runners.protocol.dialects.gemini import GeminiDialect
from lightningbus.runners.protocol.dialects.gemini_request import unwrap_counted
from lightningbus.runners.protocol.dialects.responses import ResponsesDialect
from lightningbus.runners.protocol.token_history import TokenHistory


@dataclass(frozen=True, slots=True)
class Api:
    """Parser of an API's requests, and form of its errors."""

    parse: Callable[[Any, TokenHistory], Dialect]
    """A body, in a rollout with this history; raises ValueError with a sentence for the agent."""
    error: Callable[[int, str, str], dict[str, Any]]
    """Error form: takes a status, an error's name and its message."""


def _openai(status: int, kind: str, message: str) -> dict[str, Any]:
    return base.error(kind, message, status)


def _anthropic(status: int, kind: str, message: str) -> dict[str, Any]:
    return anthropic.error(status, message)


def _gemini(status: int, kind: str, message: str) -> dict[str, Any]:
    return gemini.error(status, message)


def _openai_dialect(chat: bool, body: Any, history: TokenHistory) -> Dialect:
    return OpenAIDialect(body, chat, history)


def _responses_dialect(body: Any, history: TokenHistory) -> Dialect:
    return ResponsesDialect(body, history)


def _anthropic_dialect(body: Any, history: TokenHistory) -> Dialect:
    return AnthropicDialect(body, history)


def _gemini_dialect(stream: bool, body: Any, history: TokenHistory) -> Dialect:
    return GeminiDialect(body, history, stream)


def _counted_gemini_dialect(body: Any, history: TokenHistory) -> Dialect:
    return GeminiDialect(unwrap_counted(body), history, stream=False)


GEMINI_MODEL = "models/{model:.+}"
"""Prefix of the paths of Gemini's API: the name of a model may have a colon, or a slash."""
GENERATE_CONTENT, STREAM_CONTENT = f"{GEMINI_MODEL}:generateContent", f"{GEMINI_MODEL}:streamGenerateContent"
COUNT_TOKENS = f"{GEMINI_MODEL}:countTokens"
GEMINI_APIS = {
    GENERATE_CONTENT: Api(partial(_gemini_dialect, False), _gemini),
    STREAM_CONTENT: Api(partial(_gemini_dialect, True), _gemini),
}
GEMINI_METHODS = (":countTokens", ":generateContent", ":streamGenerateContent")
GEMINI_COUNT = Api(_counted_gemini_dialect, _gemini)
"""Parser of a request whose tokens are counted."""
APIS = {
    "chat/completions": Api(partial(_openai_dialect, True), _openai),
    "completions": Api(partial(_openai_dialect, False), _openai),
    "responses": Api(_responses_dialect, _openai),
    "messages": Api(_anthropic_dialect, _anthropic),
    **GEMINI_APIS,
}
"""Dialects by the path behind ``/v1/``; a model in the path becomes the body's ``model``."""


def find_api(path: str) -> Api:
    """Find the API of a request's path; OpenAI's for any other."""
    behind = path.partition("/v1/")[2]
    if "/v1beta/" in path or (behind.startswith("models/") and path.endswith(GEMINI_METHODS)):
        return GEMINI_COUNT
    is_messages = behind.startswith("messages") or path.endswith(("/messages", "/messages/count_tokens"))
    return APIS.get(behind, APIS["messages" if is_messages else "chat/completions"])


def translate_error(api: Api, status: int, body: bytes, message: str) -> bytes:
    """Translate an engine's error from OpenAI's form, with its ``message``, to this API's."""
    if api.error is _openai:
        return body
    return json.dumps(api.error(status, "", message)).encode()
