"""A server in front of ClickHouse that can leave every query without an answer and go on to answer pings."""

import asyncio
from types import TracebackType
from typing import Self

import aiohttp
from aiohttp import web


class ClickHouseProxy:
    """Forwards ClickHouse's HTTP interface at a URL with credentials; set `is_silent` to have it answer pings alone."""

    def __init__(self, target: str) -> None:
        self._credentials, _, self._address = target.partition("://")[2].rpartition("@")
        self.is_silent = False
        self.has_insert = asyncio.Event()
        """An insert came while it was silent."""
        self.url = ""

    async def __aenter__(self) -> Self:
        application = web.Application(client_max_size=64 * 2**20)
        application.router.add_route("*", "/{path:.*}", self._forward)
        self._session = aiohttp.ClientSession(auto_decompress=False)
        self._runner = web.AppRunner(application, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{self._credentials}@{host}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._runner.cleanup()
        await self._session.close()

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        if self.is_silent and request.path != "/ping":
            if "INSERT" in request.query.get("query", "") or body.startswith(b"INSERT"):
                self.has_insert.set()
            await asyncio.Event().wait()
        headers = {name: value for name, value in request.headers.items() if name.lower() != "host"}
        url = f"http://{self._address.rstrip('/')}{request.path_qs}"
        async with self._session.request(request.method, url, data=body or None, headers=headers) as answer:
            dropped = {"transfer-encoding", "content-length", "connection"}
            kept = {name: value for name, value in answer.headers.items() if name.lower() not in dropped}
            return web.Response(status=answer.status, body=await answer.read(), headers=kept)
