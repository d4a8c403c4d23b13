"""One model call from an agent's question to its answer, recorded on the way."""

import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Any

import aiohttp
from aiohttp import web
from nats.errors import Error as NatsError

from bus.errors import BusError
from runners.gateway.slot import Running
from runners.gateway.sse import AgentStream, CannotGoOn
from runners.gateway.upstream import Errand, NoAnswer, Refused, Upstream
from runners.protocol import continuation, token_history
from runners.protocol.accumulator import Completion, UnusableAnswer, in_form
from runners.protocol.dialects.base import Dialect
from runners.protocol.request import Call
from runners.recording.attempt import Attempt
from schemas import ids, subjects
from schemas.fleet import Heartbeat

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 5.0
"""How long an exporter, or a model call, waits for the bus to take spans."""
MAX_MODEL_LEN = 4096
"""Taken where a node does not say how long its model's context is."""

Send = Callable[[Attempt, float], Awaitable[None]]


class Answering:
    """Asks the inference nodes for agents."""

    def __init__(self, upstream: Upstream, send: Send, token_in_token_out: bool) -> None:
        """``send`` publishes what an attempt has cut so far, within seconds or raising `BusError`."""
        self._upstream, self._send, self._token_in_token_out = upstream, send, token_in_token_out

    async def answer(self, request: web.Request, running: Running, dialect: Dialect) -> web.StreamResponse:
        """Raises `UnknownModel`, `Refused` or `NoAnswer` when there is none, unless a stream has begun."""
        task, attempt, call = running.task, running.attempt, dialect.call
        errand = Errand(attempt, call.model, task.model, task.weight_version, running.deadline)
        prompt = await self._prompt(errand, call, task.sampling_params)
        completion = Completion(call, task.sampling_params, task.weight_version, prompt)
        stream = AgentStream(request, dialect, live=completion.continuable) if call.streams else None
        started_ns = time.time_ns()
        served_by: list[str] = []
        try:
            async with aclosing(
                self._upstream.ask(errand, lambda node: completion.request(_max_model_len(node)))
            ) as tries:
                async for node, chunks in tries:
                    if stream is not None and not completion.begun:
                        stream.begin_anew()
                    try:
                        with in_form():
                            async for chunk in _to_the_end(chunks, completion):
                                if node.id not in served_by:
                                    served_by = [*served_by, node.id] if completion.begun else [node.id]
                                shown = completion.visible(completion.taken(chunk))
                                if "weight_version" in chunk:
                                    attempt.versions[call.model] = chunk["weight_version"]
                                if stream is not None and shown is not None:
                                    await stream.say(shown, completion.made)
                            parts = list(completion.parts())
                            whole = dialect.answer(completion.response()) if stream is None else {}
                        break
                    except (UnusableAnswer, aiohttp.ClientError, TimeoutError, ValueError) as error:
                        said = str(error) or type(error).__name__
                        log.warning("%s: a model call failed amid the answer: %s", node.id, said)
        except (NoAnswer, Refused, CannotGoOn) as error:
            if stream is None or not stream.begun:
                raise
            attempt.infra = attempt.infra or str(error)
            return await stream.fail(str(error))
        asked = call.recorded()
        parent = ids.parse_span_id(request.headers.get(subjects.TRACE_HEADER, ""))
        times = {"started_ns": started_ns, "ended_ns": max(time.time_ns(), started_ns)}
        if call.chat and completion.ended_by_itself:
            attempt.history.add(call, json.loads(parts[0].response), parts[0].tokens)
        for part in parts:
            attempt.add_call(part, node=",".join(served_by), role=call.role, request=asked, parent=parent, **times)
        if attempt.unsent:  # what is large is not kept until the end
            with suppress(BusError, NatsError, TimeoutError):
                await self._send(attempt, PATIENCE_SECONDS)
        return web.json_response(whole) if stream is None else await stream.done()

    async def _prompt(self, errand: Errand, call: Call, sampling: dict[str, Any]) -> list[int] | None:
        """The tokens to ask with, where a new rendering of the history would not be what was sampled."""
        turn = errand.attempt.history.before(call) if call.chat and self._token_in_token_out else None
        if turn is None or not continuation.possible(call, sampling) or turn.thoughtful:
            return None
        new = await self._upstream.rendered(errand, call.rendering(call.body["messages"], answered=False))
        if new is None or new[: len(turn.tokens)] == turn.tokens:
            return None
        old = await self._upstream.rendered(errand, call.rendering(turn.messages, answered=True))
        return token_history.spliced(turn.tokens, old, new) if old is not None else None


async def _to_the_end(chunks: AsyncIterator[dict[str, Any]], completion: Completion) -> AsyncIterator[dict[str, Any]]:
    """The chunks of a try; one that breaks off after the answer's last token is ended here, with its usage."""
    try:
        async for chunk in chunks:
            yield chunk
    except (aiohttp.ClientError, TimeoutError):
        if not completion.is_whole:
            raise
        yield completion.usage_chunk()


def _max_model_len(node: Heartbeat) -> int:
    said = node.status.get("max_model_len")
    return said if isinstance(said, int) else MAX_MODEL_LEN
