"""One model call that an external endpoint answers: passed on as it is, and recorded as text."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Any

import aiohttp
from aiohttp import web

from lightningbus.runners.gateway.engines.upstream import (
    CallContext,
    NoNodeAvailableError,
    UpstreamRejectedError,
    events_of,
    waited_in_vain,
)
from lightningbus.runners.gateway.external.external_endpoints import ExternalEndpoints
from lightningbus.runners.gateway.handler import PublishSpans, reject_request, send_ahead
from lightningbus.runners.gateway.requests import ApiError
from lightningbus.runners.gateway.slot import ActiveRollout
from lightningbus.runners.gateway.sse import AgentDisconnectedError, SseResponse, StreamNotResumableError
from lightningbus.runners.protocol.answers.accumulator import StreamAccumulator
from lightningbus.runners.protocol.answers.choice import SampledChoice
from lightningbus.runners.protocol.answers.engine_errors import (
    InvalidEngineOutputError,
    RequestRefusedError,
    malformed_engine_output,
)
from lightningbus.runners.protocol.answers.external_answer import external_choices, is_visible
from lightningbus.runners.protocol.dialects.base import Dialect
from lightningbus.runners.protocol.json_text import decode_json
from lightningbus.runners.recording.open_call import OpenCall
from lightningbus.schemas import ids, subjects

log = logging.getLogger(__name__)


class ExternalCallHandler:
    """Asks external endpoints for agents."""

    def __init__(self, endpoints: ExternalEndpoints, send: PublishSpans) -> None:
        """Prepare calls; ``send`` as for `ModelCallHandler`."""
        self._endpoints, self._send = endpoints, send

    async def handle(
        self, request: web.Request, running: ActiveRollout, dialect: Dialect, prompt_versions: Mapping[str, int]
    ) -> web.StreamResponse:
        """Answer one model call, into which ``prompt_versions`` were inserted.

        Raises as `ExternalEndpoints.attempt_call`, unless a stream has begun.
        """
        task, recorder, call = running.task, running.recorder, dialect.call
        context = CallContext.create(recorder, call.model, task, running.deadline)
        if context.pinned is not None:
            pin = f"model {call.model!r} is external and has no versions; the task pins version {context.pinned}"
            raise ApiError(400, "invalid_request_error", pin)
        stream = SseResponse(request, dialect) if call.stream else None
        open_call = OpenCall(call, ids.parse_span_id(request.headers.get(subjects.TRACE_HEADER, "")), prompt_versions)
        completion = StreamAccumulator(call, task.sampling_params)
        with running.open_call():
            try:
                body, choices = await self._complete(context, dialect, task.sampling_params, stream, completion)
            except UpstreamRejectedError as refused:
                if stream is None or not stream.has_begun:
                    raise
                return await stream.fail(str(refused), refused.status)
            except (NoNodeAvailableError, StreamNotResumableError) as error:
                if stream is None or not stream.has_begun:
                    raise
                recorder.infra_error = recorder.infra_error or str(error)
                return await stream.fail(str(error))
            except (AgentDisconnectedError, asyncio.CancelledError) as reason:
                if stream is None or not stream.has_begun:
                    raise
                completion.cut()
                host = self._endpoints.host(call.model)
                choices = external_choices(call, task.sampling_params, completion.to_response(), host)
                open_call.record(recorder, choices, completion.last_token_ns)
                if isinstance(reason, AgentDisconnectedError):
                    return stream.response
                raise
            open_call.record(recorder, choices, completion.last_token_ns)
        await send_ahead(self._send, recorder)
        return web.json_response(body) if stream is None else await stream.finish()

    async def _complete(
        self,
        context: CallContext,
        dialect: Dialect,
        sampling: dict[str, Any],
        stream: SseResponse | None,
        completion: StreamAccumulator,
    ) -> tuple[dict[str, Any], list[SampledChoice]]:
        """Ask until an answer is whole: as the agent gets it if it asked for no stream, and as it is recorded."""
        call, name = dialect.call, context.model
        path = "/chat/completions" if call.chat else "/completions"
        payload = call.to_external_request(sampling, self._endpoints.model(name))
        async with aclosing(self._endpoints.attempt_call(context, path, payload)) as tries:
            async for response, mark_complete in tries:
                try:
                    completion.reset()
                    if stream is not None:
                        stream.restart()
                    async with asyncio.timeout_at(context.deadline):
                        answer = await _read_answer(response, mark_complete, completion, stream)
                    choices = external_choices(call, sampling, answer, self._endpoints.host(name))
                    with malformed_engine_output():
                        return dialect.answer(answer) if stream is None else {}, choices
                except RequestRefusedError as refused:
                    raise reject_request(refused.status, str(refused)) from refused
                except TimeoutError:
                    raise NoNodeAvailableError(waited_in_vain(f"endpoint {name!r} did not finish its answer")) from None
                except (InvalidEngineOutputError, aiohttp.ClientError, ValueError) as error:
                    log.warning("endpoint %r: a call failed amid the answer: %s", name, error)
        raise AssertionError("attempt_call yields until an answer is whole, or raises")


async def _read_answer(
    response: aiohttp.ClientResponse,
    mark_complete: Callable[[], None],
    completion: StreamAccumulator,
    stream: SseResponse | None,
) -> Any:
    """Read the whole answer, passing a stream on meanwhile; raise ValueError for a broken one."""
    if stream is None:
        return decode_json(await response.read())
    has_visible = False
    with malformed_engine_output():
        try:
            async for chunk in events_of(response.content, mark_complete):
                visible = completion.to_agent_chunks(completion.feed(chunk))
                has_visible = has_visible or is_visible(chunk)
                for agent_chunk in visible:
                    await stream.send_chunk(agent_chunk, has_visible)
        except aiohttp.ClientError:
            if not completion.has_ended:  # without [DONE], as some end
                raise
        if not completion.has_ended:
            raise InvalidEngineOutputError("the stream ended early")
        return completion.to_response()
