"""One choice of an answer while the engine streams it. Pure."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from lightningbus.runners.protocol.answers.choice import SampledPiece
from lightningbus.runners.protocol.answers.joined_message import JoinedMessage
from lightningbus.schemas.spans import MAX_ENGINE_ID
from lightningbus.schemas.text import replace_surrogates

ID_PREFIX = "token_id:"


def name_token(token_id: int) -> str:
    """Write a token by its id, as vLLM does on request."""
    return f"{ID_PREFIX}{token_id}"


def name_tokens(logprobs: dict[str, Any], token_ids: Sequence[int]) -> dict[str, Any]:
    """Return log-probabilities of sampled tokens with ids in place of texts."""
    names = list(map(name_token, token_ids))
    if "content" in logprobs:
        entries = zip(logprobs["content"] or (), names, strict=False)
        return {**logprobs, "content": [{**entry, "token": name} for entry, name in entries]}
    return {**logprobs, "tokens": names} if "tokens" in logprobs else logprobs


def _read_text(entry: dict[str, Any]) -> str:
    """Return the text of a chat's token: vLLM has it in the bytes of an entry that names the token by its id."""
    token, text_bytes = str(entry.get("token", "")), entry.get("bytes")
    return (
        token if text_bytes is None or not token.startswith(ID_PREFIX) else bytes(text_bytes).decode(errors="replace")
    )


@dataclass
class ChoiceState:
    """Its text or message, and its tokens, as far as they have come."""

    message: JoinedMessage = field(default_factory=JoinedMessage)
    text: str = ""
    parsed: dict[str, Any] | None = None
    """Message that the engine's parsers made of the whole text, in place of the joined one."""
    finish_reason: str | None = None
    stop_reason: Any = None
    prompt_ids: list[int] | None = None
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    token_texts: list[str] = field(default_factory=list)
    logprobs_seen: list[dict[str, Any]] = field(default_factory=list)
    pieces: list[SampledPiece] = field(default_factory=list)

    @property
    def is_plain_text(self) -> bool:
        """Whether it is plain text so far: no parser's output, and no tokens that a parser still buffers."""
        return self.message.is_plain_text and bool(self.message.has_content or self.text)

    def add(self, part: dict[str, Any], chunk: dict[str, Any]) -> None:
        """Add the choice's part of a chunk, whose tokens have a version."""
        self.text += part.get("text") or ""
        self.message.add(part.get("delta") or {})
        self.finish_reason = part.get("finish_reason") or self.finish_reason
        self.stop_reason = part.get("stop_reason") or self.stop_reason
        self.prompt_ids = part.get("prompt_token_ids") or self.prompt_ids
        ids = part.get("token_ids") or []
        if not ids:
            return
        self.token_ids += ids
        engine_id = str(chunk.get("engine_id", ""))[:MAX_ENGINE_ID]
        self.pieces.append(SampledPiece(chunk["weight_version"], engine_id, len(ids)))
        logprobs = part.get("logprobs") or {}
        self.logprobs_seen.append(logprobs)
        if "content" in logprobs:  # a chat
            entries = logprobs["content"] or ()
            self.logprobs += [entry["logprob"] for entry in entries]
            texts = list(map(_read_text, entries))
        else:
            self.logprobs += logprobs.get("token_logprobs") or ()
            texts = list(logprobs.get("tokens") or ())
        if texts != list(map(name_token, ids)):  # an id is not a text
            self.token_texts += map(replace_surrogates, texts)

    def whole_message(self, response_id: str) -> dict[str, Any]:
        """Return the model's message in the form of a chat's answer."""
        return self.parsed or self.message.whole(response_id)

    def to_record(self, response_id: str, chat: bool) -> str:
        """Encode its message or text as JSON, in characters that UTF-8 can encode."""
        answer = self.whole_message(response_id) if chat else self.text
        return replace_surrogates(json.dumps(answer, ensure_ascii=False))
