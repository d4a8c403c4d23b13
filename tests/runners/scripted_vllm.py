"""A real vLLM whose answers follow a script: the model samples words of its own choice, and then calls of tools."""

import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from lightningbus.inference.engine.base import EngineResponse, Forward
from lightningbus.inference.engine.vllm_engine import VllmEngine
from lightningbus.inference.settings import InferenceSettings
from tests.runners.session_engine import Step, wants_summary

CHATS = "/v1/chat/completions"
WORDS = "[A-Z][a-z]{1,9}( [a-z]{1,9}){2,6}\\."
"""Regular expression of the words that the model chooses."""


@dataclass
class Exchange:
    """A chat that vLLM was asked, and the answer as it streamed it."""

    body: dict[str, Any]
    status: int = 0
    data: bytearray = field(default_factory=bytearray)

    @property
    def error(self) -> str:
        """The body of a refusal."""
        return bytes(self.data).decode()

    @property
    def events(self) -> list[dict[str, Any]]:
        """Objects of the stream."""
        lines = bytes(self.data).decode().splitlines()
        return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]

    def describe(self) -> str:
        """Describe it on a line."""
        error = "" if self.status == 200 else self.error[:300]
        return f"{self.status}, {len(self.body['messages'])} messages {error}"

    def join(self) -> tuple[list[int], str, list[tuple[str, str]]]:
        """Join the deltas of the answer: its tokens, its text, and its calls as (name, arguments)."""
        tokens, text, calls = list[int](), "", dict[int, tuple[str, str]]()
        for event in self.events:
            for choice in event["choices"]:
                tokens += choice.get("token_ids") or []
                text += choice["delta"].get("content") or ""
                for call in choice["delta"].get("tool_calls") or []:
                    name, arguments = calls.get(call["index"], ("", ""))
                    function = call["function"]
                    calls[call["index"]] = (
                        name + (function.get("name") or ""),
                        arguments + (function.get("arguments") or ""),
                    )
        return tokens, text, [calls[index] for index in sorted(calls)]


def describe(step: Step) -> str:
    """Return the regular expression of a step: words of the model's own, and the calls in the form of hermes."""
    texts = [
        f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>' for name, arguments in step.calls
    ]
    return WORDS + escape("\n".join(texts))


def escape(text: str) -> str:
    """Escape what has a meaning in a regular expression, and nothing else: `re.escape` does so with spaces."""
    return re.sub(r"([\\.^$*+?{}\[\]()|/])", r"\\\1", text)


class ScriptedVllm(VllmEngine):
    """Has vLLM answer chats with tools by one step after another."""

    def __init__(self, settings: InferenceSettings) -> None:
        super().__init__(settings)
        self.begin(())

    def begin(self, steps: Sequence[Step]) -> None:
        """Begin a session."""
        self.steps = list(steps)
        self.num_summaries = 0
        self.exchanges: list[Exchange] = []

    @property
    def forward(self) -> Forward:
        """Pass a request on, a chat with the form of its answer."""
        to_vllm = super().forward

        @asynccontextmanager
        async def forward(
            method: str, path: str, body: bytes | None, headers: Mapping[str, str]
        ) -> AsyncIterator[EngineResponse]:
            if path != CHATS or body is None:
                async with to_vllm(method, path, body, headers) as response:
                    yield response
                return
            chat = json.loads(body)
            is_summary = wants_summary(chat["messages"])
            is_step = bool(chat.get("tools") and self.steps) and not is_summary
            step = self.steps[0] if is_step else Step()
            chat["structured_outputs"] = {"regex": f"<summary>{WORDS}</summary>" if is_summary else describe(step)}
            exchange = Exchange(chat)
            self.exchanges.append(exchange)
            async with to_vllm(method, path, json.dumps(chat).encode(), headers) as response:
                exchange.status = response.status
                if response.status == 200:
                    self.num_summaries += is_summary
                    self.steps = self.steps[is_step:]
                yield _Copied(response, exchange)

        return forward


class _Copied:
    """A response whose stream is kept."""

    def __init__(self, response: EngineResponse, exchange: Exchange) -> None:
        self._response, self._exchange = response, exchange
        self.status, self.content_type = response.status, response.content_type

    async def read(self) -> bytes:
        self._exchange.data += (body := await self._response.read())
        return body

    async def chunks(self) -> AsyncIterator[bytes]:
        async for chunk in self._response.chunks():
            self._exchange.data += chunk
            yield chunk
