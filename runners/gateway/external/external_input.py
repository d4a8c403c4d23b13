"""One request for embeddings or a moderation, which an external endpoint answers: passed on, and recorded as a span."""

import asyncio
import logging
import time
from contextlib import aclosing
from typing import Any

import aiohttp
from aiohttp import web

from lightningbus.runners.gateway.engines.upstream import CallContext, NoNodeAvailableError, waited_in_vain
from lightningbus.runners.gateway.external.external_endpoints import ExternalEndpoints
from lightningbus.runners.gateway.handler import PublishSpans, send_ahead
from lightningbus.runners.gateway.requests import ApiError
from lightningbus.runners.gateway.slot import ActiveRollout
from lightningbus.runners.protocol.answers.choice import ExternalAnswer
from lightningbus.runners.protocol.json_text import decode_json
from lightningbus.runners.protocol.request import ChatRequest
from lightningbus.runners.recording.attempt import SCOPE, AttemptRecorder
from lightningbus.schemas import ids, subjects
from lightningbus.schemas.semconv import attributes
from lightningbus.schemas.spans import Span

log = logging.getLogger(__name__)

DEFAULT_MODELS = {"embeddings": "", "moderations": "omni-moderation-latest"}
"""Paths behind ``/v1/``, and the model that the vendor takes where a request names none."""


class ExternalInputHandler:
    """Asks external endpoints for what they make of an input."""

    def __init__(self, endpoints: ExternalEndpoints, send: PublishSpans) -> None:
        """Prepare requests; ``send`` as for `ModelCallHandler`."""
        self._endpoints, self._send = endpoints, send

    async def handle(self, request: web.Request, running: ActiveRollout, call: ChatRequest, path: str) -> web.Response:
        """Answer one request; raises `ApiError` where no endpoint has its model, else as `attempt_call`."""
        if call.model not in self._endpoints.names:
            sentence = (
                f"no node answers /v1/{path}: name model {call.model!r} in `endpoints` of the runner, with the address "
                "of a server that does, or give it one of those by model_aliases"
            )
            raise ApiError(404, "model_not_found", sentence)
        recorder, started_ns = running.recorder, time.time_ns()
        parent = ids.parse_span_id(request.headers.get(subjects.TRACE_HEADER, "")) or recorder.root_id
        context = CallContext.create(recorder, call.model, running.task, running.deadline)
        with running.open_call():
            answer = await self._ask(context, call, path)
        recorder.add_external(self._describe(recorder, call, path, answer, parent, started_ns))
        await send_ahead(self._send, recorder)
        return web.json_response(answer)

    async def _ask(self, context: CallContext, call: ChatRequest, path: str) -> dict[str, Any]:
        payload = {**call.body, "model": self._endpoints.model(context.model)}
        async with aclosing(self._endpoints.attempt_call(context, f"/{path}", payload)) as tries:
            async for response, _ in tries:
                try:
                    async with asyncio.timeout_at(context.deadline):
                        answer = decode_json(await response.read())
                    if isinstance(answer, dict):
                        return answer
                    log.warning("endpoint %r: the answer to /v1/%s is not a JSON object", context.model, path)
                except TimeoutError:
                    problem = f"endpoint {context.model!r} did not finish its answer"
                    raise NoNodeAvailableError(waited_in_vain(problem)) from None
                except (aiohttp.ClientError, ValueError) as error:
                    log.warning("endpoint %r: a request failed amid the answer: %s", context.model, error)
        raise AssertionError("attempt_call yields until an answer is whole, or raises")

    def _describe(
        self,
        recorder: AttemptRecorder,
        call: ChatRequest,
        path: str,
        answer: dict[str, Any],
        parent: str,
        started_ns: int,
    ) -> Span:
        usage = answer.get("usage")
        tokens = usage.get("prompt_tokens") if isinstance(usage, dict) else None
        is_count = isinstance(tokens, int) and tokens >= 0
        reported = ExternalAnswer(
            self._endpoints.host(call.model), str(answer.get("model") or ""), tokens if is_count else None, None
        )
        return Span(
            trace_id=recorder.trace_id,
            span_id=ids.span_id(recorder.rollout, recorder.execution, path, f"{recorder.num_spans} {started_ns}"),
            parent_span_id=parent,
            name=f"{path} {call.model}",
            kind="client",
            start_ns=started_ns,
            end_ns=max(time.time_ns(), started_ns),
            status="ok",
            scope=SCOPE,
            attributes={
                attributes.OPERATION: path,
                attributes.REQUEST_MODEL: f"{call.model}:{call.role}" if call.role else call.model,
                **reported.span_attributes(),
            },
        )
