"""One model call from an agent's question to its answer, recorded on the way."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from typing import Any

import aiohttp
from aiohttp import web
from nats.errors import Error as NatsError

from lightningbus.bus.errors import BusError
from lightningbus.common.observability import metrics
from lightningbus.runners.gateway.answer_stream import end_answer, forward_chunk, request_of, until_finished
from lightningbus.runners.gateway.continued_chat import ContinuedPrompt, continue_prompt
from lightningbus.runners.gateway.engines.engine_failures import EnginesFailedError
from lightningbus.runners.gateway.engines.model_formats import ModelFormats
from lightningbus.runners.gateway.engines.upstream import (
    REFUSED_STATUS,
    CallContext,
    ContextExceededError,
    NoNodeAvailableError,
    UnknownModelError,
    Upstream,
    UpstreamRejectedError,
)
from lightningbus.runners.gateway.slot import ActiveRollout
from lightningbus.runners.gateway.sse import AgentDisconnectedError, SseResponse, StreamNotResumableError
from lightningbus.runners.protocol.answers.accumulator import StreamAccumulator
from lightningbus.runners.protocol.answers.choice import SampledChoice
from lightningbus.runners.protocol.answers.engine_errors import (
    EngineFailedError,
    InvalidEngineOutputError,
    RequestRefusedError,
    UnrecordableAnswerError,
    malformed_engine_output,
)
from lightningbus.runners.protocol.dialects.base import Dialect
from lightningbus.runners.protocol.dialects.base import error as dialect_error
from lightningbus.runners.protocol.json_text import encode_json
from lightningbus.runners.protocol.request import ChatRequest
from lightningbus.runners.protocol.token_history import Change
from lightningbus.runners.recording.attempt import AttemptRecorder
from lightningbus.runners.recording.open_call import OpenCall
from lightningbus.schemas import ids, subjects
from lightningbus.schemas.fleet import Heartbeat

log = logging.getLogger(__name__)

PUBLISH_TIMEOUT_SECONDS = 5.0
"""Seconds that an exporter, or a model call, waits for the bus to take spans."""
UNKNOWN_MODEL_STATUS = 404
UNSEEN = "the agent left before it got anything of the answer"
"""Reason why a call has no tokens to train: no later call depends on them."""

PublishSpans = Callable[[AttemptRecorder, float], Awaitable[None]]


async def send_ahead(send: PublishSpans, recorder: AttemptRecorder) -> None:
    """Publish finished batches before the end, so that large ones are not kept."""
    if recorder.outbox:
        with suppress(BusError, NatsError, TimeoutError):
            await send(recorder, PUBLISH_TIMEOUT_SECONDS)


class ModelCallHandler:
    """Asks the inference nodes for agents."""

    def __init__(self, upstream: Upstream, send: PublishSpans, token_in_token_out: bool) -> None:
        """Prepare calls; ``send`` publishes an attempt's finished batches, within seconds or raising `BusError`."""
        self._upstream, self._send, self._token_in_token_out = upstream, send, token_in_token_out
        self.formats = ModelFormats(upstream)

    async def handle(
        self, request: web.Request, running: ActiveRollout, dialect: Dialect, prompt_versions: Mapping[str, int]
    ) -> web.StreamResponse:
        """Answer one model call, into which ``prompt_versions`` were inserted.

        Raises as `Upstream.attempt_call` when no node can, unless a stream has begun.
        """
        task, attempt, call = running.task, running.recorder, dialect.call
        context = CallContext.create(attempt, call.model, task, running.deadline)
        if attempt.deadly_requests and (reason := attempt.deadly_requests.get(_fingerprint(call))):
            raise EnginesFailedError(reason, is_deadly=True)
        node_ids: list[str] = []
        full_context = attempt.full_context
        parent = ids.parse_span_id(request.headers.get(subjects.TRACE_HEADER, ""))
        recording = _Recording(attempt, OpenCall(call, parent, prompt_versions), node_ids)
        with running.open_call(), recording:
            stream = SseResponse(request, dialect) if call.stream else None
            completion: StreamAccumulator | None = None
            try:
                async with stream.kept_alive() if stream is not None else nullcontext():
                    adapted = replace(call, body=await self.formats.adapt(context, call.body))
                    prompt = await self._prompt(context, call, adapted, task.sampling_params)
                    tokens = None
                    if prompt is not None:
                        tokens, recording.rendered = prompt.token_ids, prompt.rendered
                    completion = StreamAccumulator(adapted, task.sampling_params, context.pinned, tokens)
                    answer = await self._complete(context, adapted, completion, stream, dialect, node_ids)
            except UpstreamRejectedError as refused:
                if isinstance(refused, ContextExceededError):
                    attempt.full_context = str(refused)
                is_told_in_stream = isinstance(refused, ContextExceededError) and dialect.tells_full_context_in_stream
                if stream is None or not (stream.has_begun or is_told_in_stream):
                    raise
                return await stream.fail(str(refused), refused.status, refused.code)
            except UnknownModelError as error:
                if stream is None or not stream.has_begun:
                    raise
                return await stream.fail(str(error), UNKNOWN_MODEL_STATUS)
            except (NoNodeAvailableError, EnginesFailedError, StreamNotResumableError) as error:
                if isinstance(error, EnginesFailedError):
                    attempt.add_engine_failure(str(error), error.is_deadly)
                    if error.is_deadly:
                        attempt.deadly_requests[_fingerprint(call)] = str(error)
                if stream is None or not stream.has_begun:
                    raise
                attempt.infra_error = attempt.infra_error or str(error)
                return await stream.fail(str(error))
            except (AgentDisconnectedError, asyncio.CancelledError) as reason:
                if completion is not None:
                    is_seen = stream is not None and stream.has_content
                    recording.set_answer(completion, _cut_choices(completion, is_seen))
                if stream is not None and isinstance(reason, AgentDisconnectedError):
                    return stream.response
                raise
            recording.set_answer(completion, answer.choices)
            if attempt.full_context == full_context:  # the agent has made room since
                attempt.full_context = ""
            await send_ahead(self._send, attempt)  # earlier calls first: the agent waits while the bus is full
            # Where an agent reads slowly, the record does not wait for it.
            asyncio.get_running_loop().call_soon(recording.run)
            response = await (_send_answer(request, answer.body) if stream is None else stream.finish())
        await send_ahead(self._send, attempt)
        return response

    async def _complete(
        self,
        context: CallContext,
        call: ChatRequest,
        completion: StreamAccumulator,
        stream: SseResponse | None,
        dialect: Dialect,
        node_ids: list[str],
    ) -> "CompletedCall":
        """Ask nodes as `_sample` does, and again for fewer tokens where the context has too few left.

        Raises as `_sample`, and `ContextExceededError` for a prompt that leaves none.
        """
        try:
            return await self._sample(context, completion, stream, dialect, node_ids)
        except UpstreamRejectedError as refused:
            is_before_answer = refused.status in REFUSED_STATUS and not completion.num_tokens
            if not is_before_answer or not await self._limit(context, call, completion):
                raise
        return await self._sample(context, completion, stream, dialect, node_ids)

    async def _limit(self, context: CallContext, call: ChatRequest, completion: StreamAccumulator) -> bool:
        """Return whether a refused request is to be repeated, bounded by the tokens that its prompt leaves.

        Raises `ContextExceededError` where it leaves none.
        """
        if not call.chat or completion.max_model_len is None:
            return False
        if not (num_tokens := completion.num_given_tokens):
            chat = call.to_tokenize_request(call.body["messages"], is_answered=False)
            prompt = await self._upstream.tokenize(context, chat)
            if prompt is None:
                return False
            num_tokens = len(prompt.token_ids)
        if num_tokens >= completion.max_model_len:
            raise ContextExceededError.of(num_tokens, completion.max_model_len)
        return completion.limit_tokens(num_tokens)

    async def _sample(
        self,
        context: CallContext,
        completion: StreamAccumulator,
        stream: SseResponse | None,
        dialect: Dialect,
        node_ids: list[str],
    ) -> "CompletedCall":
        """Ask nodes until an answer is whole; ``node_ids`` gets those that sampled it.

        Raises as `Upstream.attempt_call`, and `AgentDisconnectedError`.
        """
        async with aclosing(self._upstream.attempt_call(context, lambda node: request_of(node, completion))) as tries:
            async for node, chunks in tries:
                if not completion.is_resuming:
                    node_ids.clear()
                    if stream is not None:
                        stream.restart()
                try:
                    with malformed_engine_output():
                        async for chunk in until_finished(chunks, completion):
                            if node.id not in node_ids:
                                node_ids.append(node.id)
                            await forward_chunk(chunk, context, completion, stream)
                        if completion.has_ended:
                            await end_answer(self._upstream, context, node, completion, stream)
                        choices = list(completion.sampled_choices())
                        body = dialect.answer(completion.to_response()) if stream is None else {}
                        return CompletedCall(choices, body)
                except RequestRefusedError as refused:
                    raise reject_request(refused.status, str(refused)) from refused
                except UnrecordableAnswerError as error:
                    raise reject_request(400, f"the answer to this request cannot be recorded: {error}") from error
                except (InvalidEngineOutputError, aiohttp.ClientError, TimeoutError, ValueError) as error:
                    problem = str(error) or type(error).__name__
                    log.warning("%s: a model call failed amid the answer: %s", node.id, problem)
                    if not completion.has_progress:
                        _add_failure(context, node, error, problem)
        raise AssertionError("attempt_call yields until an answer is whole, or raises")

    async def _prompt(
        self, context: CallContext, call: ChatRequest, adapted: ChatRequest, sampling: dict[str, Any]
    ) -> ContinuedPrompt | None:
        """Build a prompt where rendering the history again would change the sampled tokens; count what prevents it."""
        if not self._token_in_token_out:
            return None
        tokenize = partial(self.formats.tokenize, context)
        prompt = await continue_prompt(context.recorder.history, call, adapted, sampling, tokenize)
        if isinstance(prompt, Change):
            metrics.chats_begun_anew.labels(prompt).inc()
            return None
        return prompt


@dataclass(frozen=True, slots=True)
class CompletedCall:
    """A whole answer; ``body`` is for an agent that asked for no stream."""

    choices: list[SampledChoice]
    body: dict[str, Any]


class _Recording:
    """Recording a call once: after its answer was handed to the socket, at the latest when the block ends."""

    def __init__(self, recorder: AttemptRecorder, open_call: OpenCall, node_ids: list[str]) -> None:
        self._recorder, self._open_call, self._node_ids = recorder, open_call, node_ids
        self._choices: list[SampledChoice] = []
        self.rendered: list[int] | None = None
        """The prompt as the template renders it; None: the prompt was rendered by the template."""
        self._last_token_ns = 0
        self._is_in_history = False

    def __enter__(self) -> "_Recording":
        return self

    def __exit__(self, *_: object) -> None:
        self.run()

    def set_answer(self, completion: StreamAccumulator, choices: list[SampledChoice]) -> None:
        """Set what to record; a later turn may continue with the tokens of an answer that ended with the model's."""
        self._choices, self._last_token_ns = choices, completion.last_token_ns
        self._is_in_history = completion.stopped_at_eos

    def run(self) -> None:
        """Record it, unless that was done."""
        choices, self._choices = self._choices, []
        if not choices:
            return
        call, first = self._open_call.request, choices[0]
        if call.chat:
            self._recorder.history.add_calls(json.loads(first.response))
        if call.chat and self._is_in_history and not first.missing_tokens:
            tokens = first.num_tokens
            rendered = self.rendered or tokens[: len(first.prompt_ids) // 4]
            self._recorder.history.add(call, json.loads(first.response), tokens, rendered)
        self._open_call.record(self._recorder, choices, self._last_token_ns, ",".join(self._node_ids))


def _fingerprint(call: ChatRequest) -> bytes:
    """Hash a request, so that a repetition is recognised."""
    return blake2b(call.to_record().encode(errors="replace"), digest_size=16).digest()


def reject_request(status: int, message: str) -> UpstreamRejectedError:
    """Build the error for a request that the agent has to correct."""
    return UpstreamRejectedError(status, encode_json(dialect_error("invalid_request_error", message, status)))


def _add_failure(context: CallContext, node: Heartbeat, error: Exception, problem: str) -> None:
    """Record the failure of an engine that had the request and gave no token."""
    if isinstance(error, EngineFailedError):
        context.failures.add_error(node, problem)
    elif isinstance(error, aiohttp.ClientError):
        context.failures.add_break(node, problem)


def _cut_choices(completion: StreamAccumulator, is_seen: bool) -> list[SampledChoice]:
    """Collect the sampled choices of an answer that the agent stopped reading."""
    if not completion.num_tokens:
        return []
    completion.cut()
    try:
        choices = list(completion.sampled_choices())
    except InvalidEngineOutputError as error:
        log.warning("a model call that the agent left cannot be recorded: %s", error)
        return []
    return choices if is_seen else [choice.without_tokens(UNSEEN) for choice in choices]


async def _send_answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """Send an answer to its last byte; an agent that stopped reading is no error."""
    answer = web.Response(body=encode_json(body), content_type="application/json", charset="utf-8")
    with suppress(ConnectionError):
        await answer.prepare(request)
        await answer.write_eof()
    return answer
