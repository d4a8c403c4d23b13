"""What a dialect is, and OpenAI's own, which the engine speaks as it is."""

from typing import Any, Protocol

from lightningbus.runners.protocol.json_text import encode_json
from lightningbus.runners.protocol.request import ChatRequest


class StreamEncoder(Protocol):
    """A streamed answer on its way: chunks of a chat in, server-sent events out."""

    def on_chunk(self, chunk: dict[str, Any]) -> bytes:
        """What is said of one chunk."""

    def finish(self) -> bytes:
        """What is said when the answer is whole."""

    def fail(self, reason: str, status: int = 500) -> bytes:
        """What is said when it will not be, by an HTTP status."""


class Dialect(Protocol):
    """One request in the words of its API."""

    call: ChatRequest
    """The chat, or completion, it stands for."""

    def answer(self, response: dict[str, Any]) -> dict[str, Any]:
        """The chat's whole answer as this API says it."""

    def events(self) -> StreamEncoder:
        """A new stream."""


class OpenAIDialect:
    """Chat Completions and Completions."""

    def __init__(self, body: Any, chat: bool) -> None:
        """Raises ValueError with a sentence for the agent."""
        self.call = ChatRequest.parse(body, chat)

    def answer(self, response: dict[str, Any]) -> dict[str, Any]:
        """As it is."""
        return response

    def events(self) -> "OpenAIEncoder":
        """Chunks as they are."""
        return OpenAIEncoder()


class OpenAIEncoder:
    """``data:`` lines up to ``[DONE]``."""

    def on_chunk(self, chunk: dict[str, Any]) -> bytes:
        """The chunk."""
        return sse_event(chunk)

    def finish(self) -> bytes:
        """The mark of the end."""
        return b"data: [DONE]\n\n"

    def fail(self, reason: str, status: int = 500) -> bytes:
        """An error where a chunk would be."""
        return sse_event(error(error_code(status), reason, status))


def error_code(status: int) -> str:
    """The name of an error by its HTTP status."""
    return "invalid_request_error" if 400 <= status < 500 else "server_error"


def error(kind: str, message: str, status: int = 500) -> dict[str, Any]:
    """An error as OpenAI's API says it: what went wrong is its code, and whose fault it was is its type."""
    return {"error": {"message": message, "type": error_code(status), "param": None, "code": kind}}


def sse_event(data: dict[str, Any], event: str = "") -> bytes:
    """A server-sent event."""
    name = b"event: %b\n" % event.encode() if event else b""
    return b"%bdata: %b\n\n" % (name, encode_json(data))


def text_of(content: Any) -> str:
    """The text of a message's content: a string, or parts that have texts."""
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text") or "") for part in content or () if isinstance(part, dict))
