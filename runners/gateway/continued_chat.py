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
    has_reasoning,
    splice_prompt,
)
from lightningbus.schemas.trajectory.chat_messages import canonical_message

Tokenize = Callable[[dict[str, Any]], Awaitable[Tokenized | None]]
"""Ask a node to divide a chat or a text into tokens; None: it gives none."""


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
    if has_reasoning(messages[: turn.num_messages]):
        return None
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
    earlier = call.body["messages"][: turn.num_messages]
    content = canonical_message(earlier[-1]).get("content") or ""
    if not isinstance(content, str):
        return None
    requests = [
        call.to_tokenize_request(earlier[:-1], is_answered=False),
        call.to_tokenize_request(earlier, is_answered=True),
        *([call.to_content_request(content)] if content else []),
    ]
    texts = await asyncio.gather(*(tokenize({**request, "return_token_strs": True}) for request in requests))
    prompt, whole, answer = (*texts, Tokenized([]))[:3]
    if prompt is None or whole is None or answer is None:
        return None
    return Renderings(prompt, answer, whole, chat)
