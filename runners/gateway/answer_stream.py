"""An engine's chunks on their way into the record and to a streaming agent."""

from collections.abc import AsyncIterator
from typing import Any

import aiohttp

from lightningbus.runners.gateway.engines.answer_parsing import parse_whole
from lightningbus.runners.gateway.engines.upstream import CallContext, Upstream
from lightningbus.runners.gateway.sse import SseResponse, StreamNotResumableError
from lightningbus.runners.protocol.answers.accumulator import StreamAccumulator
from lightningbus.schemas.fleet import Heartbeat


async def until_finished(
    chunks: AsyncIterator[dict[str, Any]], completion: StreamAccumulator
) -> AsyncIterator[dict[str, Any]]:
    """Yield the chunks of one try. A stream that breaks off after the last token is completed with its usage."""
    try:
        async for chunk in chunks:
            yield chunk
    except (aiohttp.ClientError, TimeoutError):
        if not completion.is_finished:
            raise
        yield completion.usage_chunk()


async def forward_chunk(
    chunk: dict[str, Any], context: CallContext, completion: StreamAccumulator, stream: SseResponse | None
) -> None:
    """Take a chunk of the engine's, and give a streaming agent its part of it."""
    whole = completion.feed(chunk)
    if "weight_version" in chunk:
        context.recorder.last_weight_versions[context.model] = chunk["weight_version"]
    if stream is not None and (agent_chunk := completion.to_agent_chunk(whole)) is not None:
        await stream.send_chunk(agent_chunk, completion.num_tokens)


async def end_answer(
    upstream: Upstream,
    context: CallContext,
    node: Heartbeat,
    completion: StreamAccumulator,
    stream: SseResponse | None,
) -> None:
    """Parse an answer that has ended, and give a streaming agent the rest of it.

    Raises as `parse_whole`, `AgentDisconnectedError`, and `StreamNotResumableError` for a rest that nobody can parse.
    """
    if stream is None or completion.needs_parsed_end:
        await parse_whole(upstream, context, node, completion)
    if stream is None:
        return
    if completion.has_unknown_end:
        raise StreamNotResumableError("the answer broke off amid a call of a tool, and its rest cannot be parsed")
    for chunk in completion.end_chunks():
        await stream.send_chunk(chunk, completion.num_tokens)
