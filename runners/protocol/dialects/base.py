"""The interface of a dialect, and OpenAI's own, which the engine speaks without translation."""

from typing import Any, Protocol

from lightningbus.runners.protocol.dialects.chat_tools import ChatTools
from lightningbus.runners.protocol.json_text import encode_json
from lightningbus.runners.protocol.request import ChatRequest
from lightningbus.runners.protocol.token_history import TokenHistory
from lightningbus.schemas.trajectory.chat_messages import parse_arguments

PING_COMMENT = b": the answer is being made\n\n"
"""A comment of server-sent events."""


class StreamEncoder(Protocol):
    """A streamed answer on its way: chunks of a chat in, server-sent events out."""

    def on_chunk(self, chunk: dict[str, Any]) -> bytes:
        """Encode one chunk."""

    def finish(self) -> bytes:
        """Encode the end of a complete answer."""

    def ping(self) -> bytes:
        """Encode what shows a waiting client that its answer is being made."""

    def fail(self, reason: str, status: int = 500, code: str = "") -> bytes:
        """Encode an error that ends the stream, by its HTTP status, and by its code where it has one of its own."""


class Dialect(Protocol):
    """One request in the words of its API."""

    call: ChatRequest
    """The chat, or completion, that the request stands for."""
    left_out: tuple[str, ...]
    """Types of tools and content in the request that the model does not get."""
    tells_full_context_in_stream: bool
    """Whether a streaming client acts on a full context only if the stream's own event says so."""

    def answer(self, response: dict[str, Any]) -> dict[str, Any]:
        """Convert the chat's whole answer to this API."""

    def events(self) -> StreamEncoder:
        """Return the encoder of a new stream."""


class OpenAIDialect:
    """Chat Completions and Completions."""

    def __init__(self, body: Any, chat: bool, history: TokenHistory) -> None:
        """Parse a request; raise ValueError with a sentence for the agent."""
        is_chat = chat and isinstance(body, dict)
        self._tools = ChatTools(body.get("tools") if is_chat else None)
        self.call = ChatRequest.parse(self._tools.convert(body, history) if is_chat else body, chat)
        self.left_out: tuple[str, ...] = ()
        self.tells_full_context_in_stream = False

    def answer(self, response: dict[str, Any]) -> dict[str, Any]:
        """Return the answer with the calls of custom tools as texts."""
        return self._tools.convert_answer(response)

    def events(self) -> "OpenAIEncoder":
        """Return the encoder of a new stream."""
        return OpenAIEncoder(self._tools)


class OpenAIEncoder:
    """``data:`` lines up to ``[DONE]``."""

    def __init__(self, tools: ChatTools) -> None:
        self._tools = tools

    def on_chunk(self, chunk: dict[str, Any]) -> bytes:
        """Encode the chunk with the calls of custom tools as texts."""
        return sse_event(self._tools.convert_chunk(chunk))

    def finish(self) -> bytes:
        """Encode the end marker."""
        return b"data: [DONE]\n\n"

    def ping(self) -> bytes:
        """Encode a comment, which every client skips."""
        return PING_COMMENT

    def fail(self, reason: str, status: int = 500, code: str = "") -> bytes:
        """Encode an error in place of a chunk."""
        return sse_event(error(code or error_code(status), reason, status))


def error_code(status: int) -> str:
    """Name an error by its HTTP status."""
    return "invalid_request_error" if 400 <= status < 500 else "server_error"


def error(kind: str, message: str, status: int = 500) -> dict[str, Any]:
    """Format an error for OpenAI's API: its code names the error, its type the side at fault."""
    return {"error": {"message": message, "type": error_code(status), "param": None, "code": kind}}


def sse_event(data: dict[str, Any], event: str = "") -> bytes:
    """Encode a server-sent event."""
    name = b"event: %b\n" % event.encode() if event else b""
    return b"%bdata: %b\n\n" % (name, encode_json(data))


def text_of(content: Any) -> str:
    """Extract the text of a message's content: a string, or parts that have texts."""
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text") or "") for part in content or () if isinstance(part, dict))


def input_of(arguments: str) -> Any:
    """Parse a call's arguments to the form that agents get: an object, around arguments that are none."""
    parsed = parse_arguments(arguments or "{}")
    return parsed if isinstance(parsed, dict) else {"arguments": arguments}
