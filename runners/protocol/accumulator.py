"""One model call as the engine streams it: what the agent gets to see, and what training needs of it.

Upstream is always asked for a stream with token ids and log-probabilities, because only a stream says which
weight version made which token. Pure: dictionaries in, dictionaries and bytes out.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from runners.protocol import continuation
from runners.protocol.choice import SampledChoice, SampledPiece, pack_array, version_spans
from runners.protocol.engine_errors import InvalidEngineOutput, UnrecordableAnswer, raise_engine_error
from runners.protocol.request import ChatRequest
from schemas.spans import MAX_ENGINE_ID

HIDDEN_FIELDS = frozenset({"weight_version", "engine_id", "prompt_token_ids", "usage"})
"""Fields of a chunk that agents get only if they ask."""

BROKEN_OFF = frozenset({"abort", "error"})
"""Reasons of an engine that ended an answer which the model had not."""

SAMPLING_KEYS = (
    "temperature", "top_p", "top_k", "min_p", "max_tokens", "max_completion_tokens", "seed", "stop", "n",
    "presence_penalty", "frequency_penalty", "repetition_penalty", "min_tokens", "logit_bias", "bad_words",
    "allowed_token_ids", "response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice",
    "guided_grammar", "tool_choice",
)  # fmt: skip


def recorded_sampling(call: ChatRequest, sampling: dict[str, Any]) -> dict[str, Any]:
    """The sampling settings of a call, of which ``sampling`` is forced."""
    settings = {**call.body, **sampling}
    return {key: settings[key] for key in SAMPLING_KEYS if settings.get(key) is not None}


@dataclass
class _ChoiceState:
    message: dict[str, Any] = field(default_factory=dict)
    tool_calls: dict[int, dict[str, Any]] = field(default_factory=dict)
    text: str = ""
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
        """Whether it is text so far: not what a parser made of it, nor tokens that a parser still keeps back."""
        return self.message.keys() <= {"role", "content"} and bool(self.message.get("content") or self.text)


class StreamAccumulator:
    """Collects a response's chunks in order, over as many tries as it takes."""

    def __init__(
        self, call: ChatRequest, sampling: dict[str, Any], pinned: int | None = None, prompt: list[int] | None = None
    ) -> None:
        """``prompt``: the tokens to ask with, instead of having the engine render the call; see `history`."""
        self._call = call
        self._prompt = prompt
        self._pinned = pinned
        self._sampling_overrides = sampling
        self._sampling = recorded_sampling(call, sampling)
        self.is_resumable = pinned is None and continuation.can_resume(call, sampling)
        """Whether an answer that breaks off is gone on with; one that is not is held back until it is whole."""
        self.is_resuming = False
        """Whether there is something to go on with."""
        self.reset()

    def reset(self) -> None:
        self._head: dict[str, Any] = {}
        self._usage: dict[str, Any] | None = None
        self._prompt_ids: list[int] | None = None
        self._choices: dict[int, _ChoiceState] = {}
        self._tokens_before_retry = 0  # tokens of the tries before this one

    def request(self, max_model_len: int) -> tuple[str, dict[str, Any]]:
        """Path and body of the next try: the whole answer, or the rest of one that broke off."""
        choice = self._choices.get(0)
        prompt = (choice.prompt_ids if choice else None) or self._prompt_ids
        self.is_resuming = bool(self.is_resumable and choice and choice.is_plain_text and prompt and choice.token_ids)
        if choice is None or prompt is None or not self.is_resuming:
            self.reset()
            if self._prompt is None:
                path = "/v1/chat/completions" if self._call.chat else "/v1/completions"
                return path, self._call.to_engine_request(self._sampling_overrides)
            self._prompt_ids = tokens = list(self._prompt)
        else:
            choice.prompt_ids = self._prompt_ids = prompt
            self._tokens_before_retry = len(choice.token_ids)
            tokens = [*prompt, *choice.token_ids]
        num_tokens_left = continuation.remaining_tokens(
            self._call, self._sampling_overrides, len(tokens), self._tokens_before_retry, max_model_len
        )
        return "/v1/completions", continuation.resume_request(
            self._call, self._sampling_overrides, tokens, max(num_tokens_left, 1)
        )

    @property
    def stopped_at_eos(self) -> bool:
        """Whether there is one answer and it ended with the model's end token, not at a length or the agent's stop."""
        choices = list(self._choices.values())
        return len(choices) == 1 and choices[0].finish_reason == "stop" and choices[0].stop_reason is None

    @property
    def is_finished(self) -> bool:
        """Whether an answer that can be gone on with has come to its end: there is no rest to ask for."""
        choice = self._choices.get(0)
        return self.is_resumable and choice is not None and choice.finish_reason is not None

    @property
    def has_ended(self) -> bool:
        """Whether every choice has said why it ended."""
        return bool(self._choices) and all(choice.finish_reason is not None for choice in self._choices.values())

    def usage_chunk(self) -> dict[str, Any]:
        """The chunk with the counts of tokens, as the engine would end this try with."""
        prompt, num_made = len(self._prompt_ids or ()), self.num_tokens - self._tokens_before_retry
        usage = {"prompt_tokens": prompt, "completion_tokens": num_made, "total_tokens": prompt + num_made}
        return {**self._head, "choices": [], "usage": usage}

    @property
    def has_progress(self) -> bool:
        """Whether this try brought a token."""
        return self.num_tokens > self._tokens_before_retry

    @property
    def num_tokens(self) -> int:
        """Tokens sampled so far."""
        return sum(len(choice.token_ids) for choice in self._choices.values())

    def feed(self, chunk: dict[str, Any]) -> dict[str, Any]:
        """Take a chunk as it came; returns it in the form of the answer it belongs to."""
        if self.is_resuming or self._prompt is not None:
            prompt = len(self._prompt_ids or ())
            chunk = continuation.rebase_chunk(chunk, self._call, self._head, prompt, self._tokens_before_retry)
        self._feed_chunk(chunk)
        return chunk

    def _feed_chunk(self, chunk: dict[str, Any]) -> None:
        """Take one chunk; raises `RequestRefused` or `InvalidEngineOutput` when it is an error."""
        if "error" in chunk:
            raise_engine_error(chunk["error"] or {})
        self._head = self._head or {key: chunk[key] for key in ("id", "created", "model") if key in chunk}
        self._usage = chunk.get("usage") or self._usage
        self._prompt_ids = chunk.get("prompt_token_ids") or self._prompt_ids
        for delta in chunk.get("choices", ()):
            self._add_choice(self._choices.setdefault(delta["index"], _ChoiceState()), delta, chunk)
            if delta.get("finish_reason") in BROKEN_OFF:
                raise InvalidEngineOutput(f"the engine ended the answer with {delta['finish_reason']!r}")

    def _add_choice(self, choice: _ChoiceState, delta: dict[str, Any], chunk: dict[str, Any]) -> None:
        choice.text += delta.get("text") or ""
        for key, value in (delta.get("delta") or {}).items():
            if key == "tool_calls":
                for piece in value or ():
                    _extend(choice.tool_calls.setdefault(piece.get("index", 0), {}), piece)
            elif key == "role" or not isinstance(value, str):
                choice.message[key] = value
            else:
                choice.message[key] = (choice.message.get(key) or "") + value
        if delta.get("finish_reason") not in BROKEN_OFF:
            choice.finish_reason = delta.get("finish_reason") or choice.finish_reason
        choice.stop_reason = delta.get("stop_reason") or choice.stop_reason
        choice.prompt_ids = delta.get("prompt_token_ids") or choice.prompt_ids
        ids = delta.get("token_ids") or []
        if not ids:
            return
        if (version := chunk.get("weight_version")) is None:
            raise InvalidEngineOutput("the node did not say which weight version made these tokens")
        choice.token_ids += ids
        choice.pieces.append(SampledPiece(version, str(chunk.get("engine_id", ""))[:MAX_ENGINE_ID], len(ids)))
        logprobs = delta.get("logprobs") or {}
        choice.logprobs_seen.append(logprobs)
        if self._call.chat:
            entries = logprobs.get("content") or ()
            choice.logprobs += [entry["logprob"] for entry in entries]
            choice.token_texts += [str(entry.get("token", "")) for entry in entries]
        else:
            choice.logprobs += logprobs.get("token_logprobs") or ()
            choice.token_texts += logprobs.get("tokens") or ()

    def to_agent_chunk(self, chunk: dict[str, Any]) -> dict[str, Any] | None:
        """The chunk as a streaming agent gets it: without what it did not ask for; None if nothing is left."""
        if not chunk.get("choices") and not self._call.wants_usage:
            return None
        visible = {k: v for k, v in chunk.items() if k not in HIDDEN_FIELDS}
        if self._call.wants_usage:
            visible["usage"] = chunk.get("usage")
        if self._call.wants_token_ids and "prompt_token_ids" in chunk:
            visible["prompt_token_ids"] = chunk["prompt_token_ids"]
        hidden = set() if self._call.wants_token_ids else {"token_ids", "prompt_token_ids"}
        if not self._call.wants_logprobs:
            hidden.add("logprobs")
        visible["choices"] = [{k: v for k, v in delta.items() if k not in hidden} for delta in chunk.get("choices", ())]
        if self._call.hides_reasoning and self._call.chat:
            for delta in visible["choices"]:
                delta["delta"] = _without_thoughts(delta.get("delta") or {})
        return visible

    def to_response(self) -> dict[str, Any]:
        """The whole answer for an agent that asked for no stream."""
        kind = "chat.completion" if self._call.chat else "text_completion"
        response: dict[str, Any] = {**self._head, "object": kind, "choices": [], "usage": self._usage}
        if self._call.wants_token_ids and self._call.chat:
            response["prompt_token_ids"] = self._prompt_ids
        for index in sorted(self._choices):
            choice = self._choices[index]
            entry: dict[str, Any] = {"index": index, "finish_reason": choice.finish_reason or "stop"}
            entry |= {"stop_reason": choice.stop_reason, "logprobs": self._logprobs(choice)}
            entry |= {"message": self._shown_message(choice)} if self._call.chat else {"text": choice.text}
            if self._call.wants_token_ids:
                entry["token_ids"] = choice.token_ids
                if not self._call.chat:
                    entry["prompt_token_ids"] = choice.prompt_ids
            response["choices"].append(entry)
        return response

    def _shown_message(self, choice: _ChoiceState) -> dict[str, Any]:
        message = _message(choice)
        return _without_thoughts(message) if self._call.hides_reasoning else message

    def _logprobs(self, choice: _ChoiceState) -> dict[str, Any] | None:
        if not self._call.wants_logprobs:
            return None
        merged: dict[str, Any] = {}
        for seen in choice.logprobs_seen:
            for key, values in seen.items():
                merged[key] = [*merged.get(key, ()), *(values or ())]
        return merged

    def sampled_choices(self) -> Iterator[SampledChoice]:
        """What was sampled, choice by choice; raises `InvalidEngineOutput` rather than guess.

        Also when the call is pinned to a weight version and a token is of another.
        """
        if not self._choices:
            raise InvalidEngineOutput("the engine's stream ended without an answer")
        for index in sorted(self._choices):
            choice = self._choices[index]
            prompt_ids = choice.prompt_ids or self._prompt_ids
            if choice.finish_reason is None:
                raise InvalidEngineOutput("the engine's stream ended early")
            if prompt_ids is None:
                raise UnrecordableAnswer("the engine gave no prompt token ids")
            if len(choice.logprobs) != len(choice.token_ids) or None in choice.logprobs:
                raise UnrecordableAnswer(
                    f"{len(choice.token_ids)} tokens came with {len(choice.logprobs)} log-probabilities"
                )
            versions = [piece.version for piece in choice.pieces]
            if not all(isinstance(version, int) and version >= 0 for version in versions):
                raise InvalidEngineOutput("the node did not say by a number which weight version made these tokens")
            if self._pinned is not None and any(version != self._pinned for version in versions):
                raise InvalidEngineOutput(
                    f"tokens of another version than {self._pinned}: the weights changed meanwhile"
                )
            yield SampledChoice(
                model=self._call.model,
                response_id=str(self._head.get("id", "")),
                prompt_ids=pack_array("I", prompt_ids),
                response_ids=pack_array("I", choice.token_ids),
                logprobs=pack_array("f", choice.logprobs),
                token_texts=tuple(choice.token_texts) if len(choice.token_texts) == len(choice.token_ids) else (),
                weight_versions=tuple(version_spans(choice.pieces)),
                finish_reason=str(choice.finish_reason),
                sampling=self._sampling,
                response=json.dumps(_message(choice) if self._call.chat else choice.text, ensure_ascii=False),
            )


def _message(choice: _ChoiceState) -> dict[str, Any]:
    message = {"role": "assistant", "content": None, **choice.message}
    if choice.tool_calls:
        message["tool_calls"] = [_tool_call(choice.tool_calls[at]) for at in sorted(choice.tool_calls)]
        message["content"] = message["content"] or None
    return message


def _tool_call(call: dict[str, Any]) -> dict[str, Any]:
    """With arguments, which OpenAI always says; an engine's stream may end before them, or leave out empty ones."""
    function = {"arguments": "", **(call.get("function") or {})}
    return {**{key: value for key, value in call.items() if key != "index"}, "function": function}


def _without_thoughts(message: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in message.items() if key not in ("reasoning", "reasoning_content")}


def _extend(whole: dict[str, Any], piece: dict[str, Any]) -> None:
    for key, value in piece.items():
        if isinstance(value, dict):
            _extend(whole.setdefault(key, {}), value)
        elif isinstance(value, str) and key == "arguments":
            whole[key] = (whole.get(key) or "") + value
        elif value is not None:
            whole[key] = value
