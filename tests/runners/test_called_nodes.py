"""The nodes at which calls of a runner are open: a queue at the others is no matter of this runner."""

import asyncio
from typing import Any

import aiohttp
import pytest

from lightningbus.runners.gateway.engines.upstream import CallContext, NoNodeAvailableError, Upstream
from lightningbus.runners.recording.attempt import AttemptRecorder
from lightningbus.schemas.fleet import Heartbeat
from tests.runners.conftest import task
from tests.runners.test_routing import node


class OneNode:
    """A fleet of one node, which stays."""

    def members(self) -> list[Heartbeat]:
        return [node("a")]

    def suspect(self, role: str, id: str) -> None:
        pass

    async def wait_for_change(self) -> None:
        await asyncio.Event().wait()


class BreakingSession:
    """A session whose calls break off; ``called`` are the nodes with an open call meanwhile."""

    called: set[str]
    upstream: Upstream

    async def post(self, *arguments: Any, **options: Any) -> None:
        self.called = set(self.upstream.called_nodes)
        raise aiohttp.ClientPayloadError("gone")


async def test_a_node_counts_while_a_call_is_open() -> None:
    session = BreakingSession()
    session.upstream = upstream = Upstream(OneNode(), session)  # type: ignore[arg-type]  # it only posts
    recorder = AttemptRecorder(task(), 1, "runner", 0)
    context = CallContext.create(recorder, "policy", task(), asyncio.get_running_loop().time())
    with pytest.raises(NoNodeAvailableError):
        async for _ in upstream.attempt_call(context, lambda node: ("/v1/chat/completions", {})):
            raise AssertionError("no node answers")
    assert session.called == {"a"}
    assert not upstream.called_nodes
