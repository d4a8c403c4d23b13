"""An engine's answer on its way into the record and to a streaming agent."""

from collections.abc import AsyncIterator
from typing import Any

import aiohttp

from lightningbus.runners.gateway.engines.answer_parsing import parse_whole
from lightningbus.runners.gateway.engines.upstream import CallContext, Upstream
from lightningbus.runners.gateway.sse import SseResponse, StreamNotResumableError
from lightningbus.runners.protocol.answers.accumulator import StreamAccumulator
from lightningbus.schemas.fleet import Heartbeat


def request_of(node: Heartbeat, completion: StreamAccumulator) -> tuple[str, dict[str, Any]]:
    """Build path and body of the next try, which ``node`` gets."""
    length, parsers = node.status.get("max_model_len"), node.status.get("parsers")
    return completion.request(length if isinstance(length, int) else None, parsers if isinstance(parsers, list) else ())


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
    if stream is None:
        return
    for agent_chunk in completion.to_agent_chunks(whole):
        await stream.send_chunk(agent_chunk, completion.is_live and completion.num_tokens > 0)


async def end_answer(
    upstream: Upstream,
    context: CallContext,
    node: Heartbeat,
    completion: StreamAccumulator,
    stream: SseResponse | None,
) -> None:
    """Have an answer that has ended parsed where that is needed, and give a streaming agent what waited for it.

    Raises as `parse_whole`, `AgentDisconnectedError`, and `StreamNotResumableError` for a rest that does not follow
    the beginning which the agent has.
    """
    await parse_whole(upstream, context, node, completion)
    if stream is None:
        return
    if (chunks := completion.end_chunks()) is None:
        raise StreamNotResumableError("the answer broke off amid a call of a tool, and its rest cannot be parsed")
    for chunk in chunks:
        await stream.send_chunk(chunk, is_certain=True)
