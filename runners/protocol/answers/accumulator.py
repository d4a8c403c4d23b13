"""One model call as the engine streams it: the agent's view, and the record for training.

Upstream is always asked for a stream with token ids and log-probabilities, because only a stream reports the weight
version of each token. No I/O: dictionaries in, dictionaries and bytes out. It reads the clock as chunks come.
"""

import math
import time
from collections.abc import Collection, Iterator
from typing import Any

from lightningbus.runners.protocol.answers import continuation
from lightningbus.runners.protocol.answers.agent_chunks import AgentChunks, without_thoughts
from lightningbus.runners.protocol.answers.choice import (
    SampledChoice,
    pack_array,
    recorded_sampling,
    version_spans,
)
from lightningbus.runners.protocol.answers.choice_state import ChoiceState, name_tokens
from lightningbus.runners.protocol.answers.engine_errors import (
    InvalidEngineOutputError,
    UnrecordableAnswerError,
    raise_engine_error,
)
from lightningbus.runners.protocol.message_parts import has_media
from lightningbus.runners.protocol.request import ChatRequest
from lightningbus.schemas.text import replace_surrogates

BROKEN_OFF = frozenset({"abort", "error"})
"""Reasons of an engine that ended an answer which the model had not."""
CLIENT_CLOSED = "client_closed"
"""The finish reason of an answer that the agent stopped reading before its end."""

MEDIA = "the prompt has images or other content that is no text, and training reads text only"
"""Reason why a call has no tokens to train: the learner would compute them without what the model saw."""


class StreamAccumulator:
    """Collects a response's chunks in order, over as many tries as it takes."""

    def __init__(
        self, call: ChatRequest, sampling: dict[str, Any], pinned: int | None = None, prompt: list[int] | None = None
    ) -> None:
        """Prepare a call; ``prompt`` are tokens to send instead of the rendered call, see `TokenHistory`."""
        self._call = call
        self._prompt = prompt
        self._pinned = pinned
        self._sampling_overrides = sampling
        self._sampling = recorded_sampling(call, sampling)
        self._has_media = call.chat and has_media(call.body["messages"])
        self.is_resumable = pinned is None and continuation.can_resume(call, sampling)
        """Whether an answer that breaks off can be resumed in its parsed form."""
        self._can_parse_rest = pinned is None and continuation.can_resume_unparsed(call, sampling)
        self._parsers: Collection[str] = ()
        """Kinds of content that the node asked last parses in whole texts."""
        self.streams_calls = False
        """Whether the agent gets tool calls as they come: the rest of a broken answer is parsed with its beginning."""
        self.is_resuming = False
        """Whether there is a part to resume from."""
        self._continues_tokens = False
        """Whether the completions route is asked for the tokens after a prompt's, or after a part of an answer."""
        self.max_model_len: int | None = None
        """Context length, in tokens, of the node that was asked last; None: it reports none."""
        self._max_new_tokens: int | None = None
        self.last_token_ns = 0
        """Unix time in ns when the last chunk with a choice arrived from the engine; 0: none yet."""
        self.reset()

    def reset(self) -> None:
        self._head: dict[str, Any] = {}
        self._usage: dict[str, Any] | None = None
        self._prompt_ids: list[int] | None = None
        self._choices: dict[int, ChoiceState] = {}
        self._agent_chunks = AgentChunks(self._call, self._choices, self.streams_calls)
        self._waiting: list[dict[str, Any]] = []
        """The chunks of a rest that no parser has read."""
        self._tokens_before_retry = 0  # tokens of the tries before this one

    @property
    def is_live(self) -> bool:
        """Whether the agent may have the beginning, as a broken answer goes on; all others come when they are whole."""
        return self.is_resumable or self.streams_calls

    @property
    def has_unparsed_rest(self) -> bool:
        """Whether the rest of the answer comes as tokens that no parser has read."""
        return self.is_resuming and self.streams_calls

    def request(self, max_model_len: int | None, parsers: Collection[str] = ()) -> tuple[str, dict[str, Any]]:
        """Build path and body of the next try: the whole answer, or the rest of one that broke off.

        ``parsers``: kinds of content that the node parses in whole texts.
        """
        self.max_model_len, self._parsers = max_model_len, parsers
        choice = self._choices.get(0)
        prompt = (choice.prompt_ids if choice else None) or self._prompt_ids
        can_resume = self.streams_calls or (self.is_resumable and choice is not None and choice.is_plain_text)
        self.is_resuming = bool(can_resume and choice and prompt and choice.token_ids)
        if choice is None or prompt is None or not self.is_resuming:
            self.streams_calls = self._can_parse_rest and "tool" in parsers
            self.reset()
            is_parsed = self._call.chat and "reasoning" in parsers  # the completions route leaves thoughts in the text
            self._continues_tokens = self._prompt is not None and self.is_resumable and not is_parsed
            if self._prompt is None or not self._continues_tokens:
                return self._whole_request()
            self._prompt_ids = tokens = list(self._prompt)
        else:
            self._continues_tokens = True
            choice.prompt_ids = self._prompt_ids = prompt
            self._tokens_before_retry = len(choice.token_ids)
            tokens = [*prompt, *choice.token_ids]
        max_model_len = max_model_len or continuation.MAX_MODEL_LEN
        num_tokens_left = continuation.remaining_tokens(
            self._call, self._sampling_overrides, len(tokens), self._tokens_before_retry, max_model_len
        )
        return "/v1/completions", continuation.resume_request(
            self._call, self._sampling_overrides, tokens, max(num_tokens_left, 1)
        )

    def _whole_request(self) -> tuple[str, dict[str, Any]]:
        """Build path and body of a request for an answer from its beginning.

        vLLM's chat route takes the tokens of a prompt, instead of rendering the messages, by a field meant for engines
        that share a request; its parsers of tool calls and thoughts do the same as for a rendered prompt.
        """
        body = self._call.to_engine_request(self._sampling_overrides)
        if self._prompt is not None:
            body["kv_transfer_params"] = {"prompt_token_ids": list(self._prompt)}
            self.limit_tokens(len(self._prompt))
        if self._call.chat:
            return "/v1/chat/completions", continuation.limit_body(body, self._max_new_tokens, self.max_model_len)
        return "/v1/completions", body

    @property
    def num_given_tokens(self) -> int:
        """Length of a prompt that is sent as tokens; 0: the engine renders it."""
        return len(self._prompt or ())

    def limit_tokens(self, num_prompt_tokens: int) -> bool:
        """Bound the next try by what a prompt leaves of the context; return whether the agent wants more."""
        if self.max_model_len is None:
            return False
        self._max_new_tokens = self.max_model_len - num_prompt_tokens
        limits = continuation.limits_of(self._call.force(self._sampling_overrides))
        return any(limit > self._max_new_tokens for limit in limits.values())

    @property
    def stopped_at_eos(self) -> bool:
        """Whether there is one answer, and an end token of the model's ended it: no length, and no stop of the agent's.

        vLLM names the end token as ``stop_reason`` where a model has several.
        """
        choices = list(self._choices.values())
        if len(choices) != 1 or choices[0].finish_reason not in ("stop", "tool_calls"):
            return False
        reason = choices[0].stop_reason
        stops = self._sampling_overrides.get("stop_token_ids", self._call.body.get("stop_token_ids"))
        return reason is None or (isinstance(reason, int) and reason not in (stops or ()))

    @property
    def is_finished(self) -> bool:
        """Whether a resumable answer is complete, so that there is no rest to ask for."""
        choice = self._choices.get(0)
        return self.is_live and choice is not None and choice.finish_reason is not None

    @property
    def has_ended(self) -> bool:
        """Whether every choice has its finish reason."""
        return bool(self._choices) and all(choice.finish_reason is not None for choice in self._choices.values())

    def usage_chunk(self) -> dict[str, Any]:
        """Build the chunk with the counts of tokens with which the engine would end this try."""
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
        if self._continues_tokens:
            prompt = len(self._prompt_ids or ())
            chunk = continuation.rebase_chunk(chunk, self._call, self._head, prompt, self._tokens_before_retry)
        if self.has_unparsed_rest:
            chunk = {**chunk, "choices": [{**part, "delta": {}} for part in chunk.get("choices", ())]}
        self._feed_chunk(chunk)
        return chunk

    def _feed_chunk(self, chunk: dict[str, Any]) -> None:
        """Take one chunk; raises `RequestRefusedError` or `InvalidEngineOutputError` when it is an error."""
        if "error" in chunk:
            raise_engine_error(chunk["error"] or {})
        self._head = self._head or {key: chunk[key] for key in ("id", "created", "model") if key in chunk}
        self._usage = chunk.get("usage") or self._usage
        self._prompt_ids = chunk.get("prompt_token_ids") or self._prompt_ids
        if chunk.get("choices"):
            self.last_token_ns = time.time_ns()
        for part in chunk.get("choices", ()):
            if part.get("token_ids") and chunk.get("weight_version") is None:
                raise InvalidEngineOutputError("the node did not say which weight version made these tokens")
            reason = part.get("finish_reason")
            is_broken_off = reason in BROKEN_OFF
            taken = {**part, "finish_reason": None} if is_broken_off else part
            self._choices.setdefault(part["index"], ChoiceState()).add(taken, chunk)
            if is_broken_off:
                raise InvalidEngineOutputError(f"the engine ended the answer with {reason!r}")

    def to_agent_chunks(self, chunk: dict[str, Any]) -> list[dict[str, Any]]:
        """Return a streaming agent's part of a chunk; a rest that nobody has parsed waits for `end_chunks`."""
        if self.has_unparsed_rest:
            self._waiting.append(chunk)
            return []
        return self._agent_chunks.show(chunk, self._response_id)

    def end_chunks(self) -> list[dict[str, Any]] | None:
        """Return what waited, as parsed with the beginning; None where nobody could, or it has another beginning."""
        if not self.has_unparsed_rest:
            return []
        parsed = self._choices[0].parsed
        if parsed is None or not self._agent_chunks.fits(parsed):
            return None
        return [part for chunk in self._waiting for part in self._agent_chunks.show(chunk, self._response_id)]

    @property
    def _response_id(self) -> str:
        return str(self._head.get("id", ""))

    def to_response(self) -> dict[str, Any]:
        """Build the whole answer for an agent that asked for no stream."""
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

    def _shown_message(self, choice: ChoiceState) -> dict[str, Any]:
        message = choice.whole_message(self._response_id)
        return without_thoughts(message) if self._call.hides_reasoning else message

    def _logprobs(self, choice: ChoiceState) -> dict[str, Any] | None:
        if not self._call.wants_logprobs:
            return None
        merged: dict[str, Any] = {}
        for seen in choice.logprobs_seen:
            for key, values in seen.items():
                merged[key] = [*merged.get(key, ()), *(values or ())]
        return name_tokens(merged, choice.token_ids) if self._call.names_tokens_by_id else merged

    @property
    def needs_parsing(self) -> bool:
        """Whether parsers for whole texts apply: to an answer without a stream, and to one whose rest is unparsed."""
        if self._call.stream:
            return self.has_unparsed_rest
        parsers = self._parsers
        has_tools = bool(self._call.force(self._sampling_overrides).get("tools"))
        return self._call.chat and ("reasoning" in parsers or ("tool" in parsers and has_tools))

    def parse_request(self) -> dict[str, Any]:
        """Build the request for the engine's parsers: the answer in the form of one without a stream."""
        return {
            "request": self._call.to_engine_request(self._sampling_overrides),
            "prompt_token_ids": self._prompt_ids,
            "choices": [
                {
                    "index": index,
                    "token_ids": choice.token_ids,
                    "finish_reason": "stop" if choice.finish_reason == "tool_calls" else choice.finish_reason,
                    "stop_reason": choice.stop_reason,
                }
                for index, choice in sorted(self._choices.items())
            ],
        }

    def use_parsed(self, parts: list[dict[str, Any]]) -> None:
        """Take the answer to `parse_request` instead of what the stream added up to."""
        for part in parts:
            choice = self._choices[part["index"]]
            choice.parsed = {"role": "assistant", "content": None, **part["message"]}
            choice.finish_reason = part["finish_reason"]

    def cut(self) -> None:
        """End the choices that have not ended: the agent has stopped reading."""
        for choice in self._choices.values():
            choice.finish_reason = choice.finish_reason or CLIENT_CLOSED

    def sampled_choices(self) -> Iterator[SampledChoice]:
        """Yield what was sampled, choice by choice; raise `InvalidEngineOutputError` rather than guess.

        Raises also when the call is pinned to a weight version and a token is of another.
        """
        if not self._choices:
            raise InvalidEngineOutputError("the engine's stream ended without an answer")
        missing = self._missing_tokens() or (MEDIA if self._has_media else "")
        for index in sorted(self._choices):
            choice = self._choices[index]
            prompt_ids = choice.prompt_ids or self._prompt_ids
            if choice.finish_reason is None:
                raise InvalidEngineOutputError("the engine's stream ended early")
            if prompt_ids is None:
                raise UnrecordableAnswerError("the engine gave no prompt token ids")
            if len(choice.logprobs) != len(choice.token_ids) or None in choice.logprobs:
                raise UnrecordableAnswerError(
                    f"{len(choice.token_ids)} tokens came with {len(choice.logprobs)} log-probabilities"
                )
            versions = [piece.version for piece in choice.pieces]
            if not all(isinstance(version, int) and version >= 0 for version in versions):
                raise InvalidEngineOutputError(
                    "the node did not say by a number which weight version made these tokens"
                )
            if self._pinned is not None and any(version != self._pinned for version in versions):
                raise InvalidEngineOutputError(
                    f"tokens of another version than {self._pinned}: the weights changed meanwhile"
                )
            sampled = SampledChoice(
                model=self._call.model,
                response_id=replace_surrogates(self._response_id),
                prompt_ids=pack_array("I", prompt_ids),
                response_ids=pack_array("I", choice.token_ids),
                logprobs=pack_array("f", choice.logprobs),
                token_texts=tuple(choice.token_texts) if len(choice.token_texts) == len(choice.token_ids) else (),
                weight_versions=tuple(version_spans(choice.pieces)),
                finish_reason=replace_surrogates(str(choice.finish_reason)),
                sampling=self._sampling,
                response=choice.to_record(self._response_id, self._call.chat),
            )
            yield sampled.without_tokens(missing) if missing else sampled

    def _missing_tokens(self) -> str:
        """Explain how many tokens the engine counted but did not return; empty if all came."""
        usage = self._usage or {}
        of_one_prompt = self._call.chat or isinstance(self._call.body.get("prompt"), str)
        prompt_ids = self._prompt_ids or next((choice.prompt_ids for choice in self._choices.values()), None) or ()
        come = {"completion_tokens": self.num_tokens, "prompt_tokens": len(prompt_ids) if of_one_prompt else math.inf}
        for name, number in come.items():
            counted = usage.get(name)
            if isinstance(counted, int) and counted > number:
                return f"the engine counts {counted} {name.replace('_', ' ')}, and gave the ids of {number}"
        return ""
