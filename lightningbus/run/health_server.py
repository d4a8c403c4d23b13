"""``/healthz``, ``/readyz`` and ``/metrics``: is the process alive, can it work now, what has it done."""

import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from bus.client import Bus
from bus.fleet.readiness import unready
from common.observability import metric_registry, metrics
from common.role_settings import address

log = logging.getLogger(__name__)


class CannotListen(Exception):
    """The address of the probes is taken, or none of this machine."""


class Health:
    """Answers the probes of one role; ``bus`` is set once it is connected."""

    def __init__(self, role: str) -> None:
        self._role = role
        self.bus: Bus | None = None

    def unready(self) -> str:
        """Why the role cannot do its work now, as a sentence; empty: it can."""
        if self.bus is None or not self.bus.nc.is_connected:
            return f"{self._role} is not connected to the bus"
        if self.bus.problem:
            return f"{self._role}: {self.bus.problem}"
        if self.bus.pulse is None:
            return f"{self._role} is starting"
        return unready(self.bus.pulse.said())

    @asynccontextmanager
    async def serving(self, where: str | None) -> AsyncIterator[None]:
        """Listen while the block runs, at `RoleSettings.health`; raises `CannotListen`."""
        if where is None:
            yield
            return
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        host, port = address(where)
        try:
            listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        except (OSError, OverflowError) as error:
            raise CannotListen(f"health: cannot listen on {where}: {getattr(error, 'strerror', error)}") from error
        await runner.setup()
        try:
            await web.SockSite(runner, listener).start()
            log.info("health at http://%s:%d", host, listener.getsockname()[1])
            yield
        finally:
            await runner.cleanup()

    async def _healthz(self, request: web.Request) -> web.Response:
        """That this is answered is what is asked: the loop that does the work turns."""
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        reason = self.unready()
        return web.Response(text=f"{reason or 'ok'}\n", status=503 if reason else 200)

    async def _metrics(self, request: web.Request) -> web.Response:
        metrics.ready.set(not self.unready())
        return web.Response(body=metric_registry.exposition(self._role), headers={"Content-Type": CONTENT_TYPE_LATEST})
