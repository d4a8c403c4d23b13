"""The prompt of a chat that continues: rendered by a node's template, with answers as the tokens that were sampled."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from lightningbus.runners.protocol.answers import continuation
from lightningbus.runners.protocol.request import ChatRequest
from lightningbus.runners.protocol.token_history import (
    Change,
    ChatTurn,
    Renderings,
    TokenHistory,
    Tokenized,
    find_change,
    splice_prompt,
)
from lightningbus.schemas.trajectory.chat_messages import canonical_message

Tokenize = Callable[[dict[str, Any]], Awaitable[Tokenized | None]]
"""Ask a node to divide a chat or a text into tokens; None: it gives none."""

REASONING_FIELDS = ("reasoning", "reasoning_content")
"""Fields of a message that have its thought."""


@dataclass(frozen=True, slots=True)
class ContinuedPrompt:
    """A prompt with sampled answers in it, and the template's own rendering of it."""

    token_ids: list[int]
    rendered: list[int]


async def continue_prompt(
    history: TokenHistory, call: ChatRequest, adapted: ChatRequest, sampling: dict[str, Any], tokenize: Tokenize
) -> ContinuedPrompt | Change | None:
    """Build the prompt of a chat from the sampled tokens of its earlier answers.

    ``adapted`` is the call as its model gets it. None: the call begins a conversation, the rendering has those tokens
    anyway, or they are in no text. A change: the template changed what came before the new messages, so that a new
    conversation begins.
    """
    if not continuation.can_splice(adapted, sampling) or (turn := history.longest_prefix(call)) is None:
        return None
    messages = call.body["messages"]
    chat = await tokenize(call.to_tokenize_request(messages, is_answered=False))
    if chat is None:
        return Change.UNKNOWN
    if chat.token_ids[: len(turn.token_ids)] == turn.tokens:
        return None
    renderings = await _render(turn, call, chat, tokenize)
    if renderings is None:
        return Change.UNKNOWN
    if (change := find_change(turn, renderings)) is not None:
        return change
    prompt = splice_prompt(turn.tokens, renderings.turn.token_ids, chat.token_ids)
    return Change.ANSWER if prompt is None else ContinuedPrompt(prompt, chat.token_ids)


async def _render(turn: ChatTurn, call: ChatRequest, chat: Tokenized, tokenize: Tokenize) -> Renderings | None:
    """Have the conversation rendered to its last answer, with the strings of the tokens; None: a node cannot."""
    *before, answer = call.body["messages"][: turn.num_messages]
    canonical = canonical_message(answer)
    parts = [canonical.get(name) or "" for name in ("content", "reasoning")]
    if not all(isinstance(part, str) for part in parts):
        return None
    bare = {name: value for name, value in answer.items() if name not in REASONING_FIELDS}
    requests = [
        call.to_tokenize_request(before, is_answered=False),
        call.to_tokenize_request([*before, answer], is_answered=True),
        *(call.to_content_request(part) if part else None for part in parts),
        call.to_tokenize_request([*before, bare], is_answered=True) if parts[1] else None,
    ]

    async def render(request: dict[str, Any] | None) -> Tokenized | None:
        return Tokenized([]) if request is None else await tokenize({**request, "return_token_strs": True})

    prompt, whole, content, thought, without_thought = await asyncio.gather(*map(render, requests))
    if prompt is None or whole is None or content is None or thought is None or without_thought is None:
        return None
    return Renderings(prompt, content, thought, whole, without_thought, chat)
