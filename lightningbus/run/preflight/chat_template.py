"""A model's chat template as its node's vLLM renders it, and the parts of a chat that the template leaves out."""

import json
import secrets
from collections.abc import AsyncIterator
from typing import Any

from lightningbus.inference.engine.base import Engine
from lightningbus.run.preflight.chat_parts import ChatPart, list_parts, list_unmarked_parts
from lightningbus.run.preflight.scripted_engine import post
from lightningbus.runners.protocol.model_format import ModelFormat, adapt_messages, needed_fields, probes
from lightningbus.runners.protocol.request import ChatRequest
from lightningbus.runners.protocol.token_history import Tokenized

MARK = f"q{secrets.token_hex(4)}x"
"""Begins each mark; nobody can guess it."""
END = "z"
"""Ends each mark, so that no mark is the beginning of another mark."""


class ChatTemplate:
    """Renders chats as a runner does: its gateway first adapts the messages to the template."""

    def __init__(self, engine: Engine) -> None:
        """Prepare to render with an engine that may be scripted."""
        self._engine = engine
        self._known: dict[tuple[str, str], bool] = {}
        """Results of the probes, by model and field of `ModelFormat`."""

    async def adapt(self, chat: dict[str, Any]) -> dict[str, Any]:
        """Return the chat as the gateway sends it to a node."""
        if chat.get("chat_template"):
            return chat
        messages = chat["messages"]
        return {**chat, "messages": adapt_messages(messages, await self._find_format(str(chat["model"]), messages))}

    async def render(self, chat: dict[str, Any], *, is_answered: bool = False) -> Tokenized | None:
        """Render a chat to tokens, with the start of an answer unless it ``is_answered``; None: it is refused."""
        call = ChatRequest.parse(await self.adapt(chat), chat=True)
        goes_on = bool(chat.get("continue_final_message"))
        request = call.to_tokenize_request(call.body["messages"], is_answered=is_answered or goes_on)
        return await self._tokenize({**request, "continue_final_message": goes_on})

    async def find_unread(self, chat: dict[str, Any]) -> AsyncIterator[ChatPart]:
        """Yield each part of a chat that its prompt lacks; none where the template refuses the chat."""
        parts = list(list_parts(chat))
        marks = [f"{MARK}{number}{END}" for number in range(len(parts))]
        marked = chat
        for part, mark in zip(parts, marks, strict=True):
            marked = part.mark(marked, mark)
        rendered = await self.render(marked)
        text = rendered.text if rendered is not None else ""
        lost: list[tuple[str | int, ...]] = []
        named: set[str] = set()
        for part, mark in zip(parts, marks, strict=True):
            is_lost = part.words in named or any(part.path[: len(whole)] == whole for whole in lost)
            if mark in text or is_lost:
                continue
            if await self.is_unread(chat, part, mark):
                named.add(part.words)
                if part.whole:
                    lost.append(part.whole)
                yield part
        for part in list_unmarked_parts(chat):
            if await self.is_unread(chat, part):
                yield part

    async def is_unread(self, chat: dict[str, Any], part: ChatPart, mark: str = MARK) -> bool:
        """Compare the prompts with and without a mark: a tokenizer may lack the tokens that would show a mark."""
        base, marked = await self.render(chat), await self.render(part.mark(chat, mark))
        return base is not None and marked is not None and marked.token_ids == base.token_ids

    async def _find_format(self, model: str, messages: list[Any]) -> ModelFormat:
        fields = needed_fields(messages)
        for field in fields:
            if (model, field) not in self._known:
                bodies = [
                    {"model": model, "messages": chat, "add_generation_prompt": False} for chat in probes()[field]
                ]
                first, second = [await self._tokenize(body) for body in bodies]
                is_rendered = first is not None and second is not None and first.token_ids != second.token_ids
                self._known[model, field] = is_rendered
        return ModelFormat(**{field: self._known[model, field] for field in fields})

    async def _tokenize(self, body: dict[str, Any]) -> Tokenized | None:
        status, text = await post(self._engine, "/tokenize", {**body, "return_token_strs": True})
        if status != 200:
            return None
        answer = json.loads(text)
        return Tokenized(answer["tokens"], "".join(answer.get("token_strs") or ()))
