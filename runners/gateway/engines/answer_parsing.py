"""Answers of which the engine's parsers read the whole text: without a stream, or with a rest that came as tokens."""

import logging
from contextlib import aclosing
from dataclasses import replace

import aiohttp

from lightningbus.runners.gateway.engines.upstream import CallContext, Upstream, UpstreamRejectedError
from lightningbus.runners.protocol.answers.accumulator import StreamAccumulator
from lightningbus.schemas.fleet import PARSE_PATH, Heartbeat

log = logging.getLogger(__name__)


async def parse_whole(upstream: Upstream, context: CallContext, node: Heartbeat, completion: StreamAccumulator) -> None:
    """Replace what a stream added up to, if ``node``, which sampled its end, has parsers that it needs.

    Any node will do: parsing needs no weights. Raises `NoNodeAvailableError` when none answers before the deadline.
    """
    if not completion.needs_parsing:
        return
    body = completion.parse_request()
    try:
        async with aclosing(
            upstream.attempt_call(replace(context, pinned=None), lambda node: (PARSE_PATH, body))
        ) as tries:
            async for other, events in tries:
                try:
                    (event,) = [event async for event in events]
                    completion.use_parsed(event["choices"])
                    return
                except (aiohttp.ClientError, TimeoutError, ValueError, LookupError, TypeError) as error:
                    log.warning("%s: an answer was not parsed: %s", other.id, error or type(error).__name__)
    except UpstreamRejectedError as error:  # the parser failed at this text: what was streamed is all there is
        log.warning("%s: %s; the agent gets what was streamed", node.id, error.body.decode(errors="replace")[:500])
