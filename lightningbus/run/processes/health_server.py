"""Serves ``/healthz``, ``/readyz`` and ``/metrics`` for one role."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from lightningbus.bus.client import Bus
from lightningbus.bus.fleet.readiness import not_ready_reason
from lightningbus.common.listeners import open_listener, serve_without_password
from lightningbus.common.observability import metric_registry, metrics
from lightningbus.common.role_settings import parse_address

log = logging.getLogger(__name__)

OPEN_HEALTH = "whoever does can read the role's state and metrics; let only your monitoring reach this port"


class HealthServer:
    """HTTP server for the probes of one role; ``bus`` is set once it is connected."""

    def __init__(self, role: str) -> None:
        self._role = role
        self.bus: Bus | None = None

    def not_ready_reason(self) -> str:
        """Return a sentence that says why the role cannot work now; empty if it can."""
        if self.bus is None or not self.bus.nc.is_connected:
            return f"{self._role} is not connected to the bus"
        if self.bus.problem:
            return f"{self._role}: {self.bus.problem}"
        if not self.bus.heartbeats:
            return f"{self._role} is starting"
        # Of a node with several models: a model that waits for weights is no reason to take calls from the others.
        reasons = [not_ready_reason(heartbeat.current()) for heartbeat in self.bus.heartbeats]
        return "" if "" in reasons else "; ".join(dict.fromkeys(reasons))

    @asynccontextmanager
    async def serve(self, address: str | None) -> AsyncIterator[None]:
        """Listen while the block runs, at `RoleSettings.health_address`; raises `AddressInUseError`."""
        if address is None:
            yield
            return
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        host, port = parse_address(address)
        listener = open_listener(host, port, "health", "set another address")
        async with serve_without_password(app, host, listener, "health", OPEN_HEALTH) as url:
            log.info("health at %s", url)
            yield

    async def _healthz(self, request: web.Request) -> web.Response:
        """Answer ``ok``: an answer shows that the process's event loop is running."""
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        reason = self.not_ready_reason()
        return web.Response(text=f"{reason or 'ok'}\n", status=503 if reason else 200)

    async def _metrics(self, request: web.Request) -> web.Response:
        metrics.ready.set(not self.not_ready_reason())
        return web.Response(
            body=metric_registry.render_exposition(self._role), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )
