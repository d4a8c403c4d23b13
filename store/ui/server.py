"""Serves the web page and its JSON over HTTP to a browser on this machine.

Neither agents nor other sites are trusted: no text of an agent becomes code, and requests for a host name other than
this server's are refused, which stops DNS rebinding.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

from lightningbus.bus.fleet.heartbeat_text import describe
from lightningbus.common.listeners import is_loopback, open_listener, serve_without_password
from lightningbus.schemas.fleet import Heartbeat
from lightningbus.store.embedded import origin_check
from lightningbus.store.ui import run_list, run_state
from lightningbus.store.ui.client import QueryFailedError, Reader, StoreGoneError, StoreState
from lightningbus.store.ui.other_run import OtherRuns, RunReader
from lightningbus.store.ui.responses import json_response
from lightningbus.store.ui.rollouts.review_routes import Publish, ReviewRoutes
from lightningbus.store.ui.rollouts.routes import ReadTokens, RolloutRoutes
from lightningbus.store.ui.run_files import FileRoutes, RunFiles
from lightningbus.store.ui.run_routes import RunRoutes

STATIC = Path(__file__).parent / "static"
RESPONSE_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
OPEN_PAGE = (
    "whoever does can read every run and write reviews; listen on 127.0.0.1, behind a proxy that asks for one "
    "(--allowed-host names the proxy's host)"
)
STORE_HEADER = "Lightningbus-Store"
"""Header of every answer with the page's source: a `StoreState`."""
ListMembers = Callable[[], Sequence[Heartbeat] | str]
"""The living processes, or a sentence why they are unknown."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class UiServer:
    """The page's application; ``members`` is called for each view of the fleet, ``publish`` for each review.

    ``files`` are shown where only this machine can reach the page.
    """

    def __init__(
        self,
        reader: Reader,
        host: str,
        members: ListMembers,
        others: OtherRuns | None = None,
        publish: Publish | None = None,
        files: RunFiles | None = None,
        allowed_hosts: Collection[str] = (),
        read_tokens: ReadTokens | None = None,
    ) -> None:
        """``allowed_hosts``: further host names under which browsers reach the page, such as that of a proxy.

        ``read_tokens`` gives recorded prompts as text.
        """
        self._reader = RunReader(reader, others)
        self._files = files if is_loopback(host) else None  # a run's directory is its owner's alone
        self._read_tokens = read_tokens
        self._host, self._allowed_hosts, self._list_members, self._publish = host, allowed_hosts, members, publish

    def application(self) -> web.Application:
        """Build the application with all routes."""
        app = web.Application(middlewares=[self._check_host])
        app.router.add_get("/", self._index)
        app.router.add_static("/static", STATIC)
        app.router.add_get("/api/runs", self._runs)
        app.router.add_get("/api/fleet", self._fleet)
        RolloutRoutes(self._reader, self._read_tokens).add_to(app)
        ReviewRoutes(self._reader, self._publish).add_to(app)
        FileRoutes(self._files).add_to(app)
        RunRoutes(self._reader, self._members).add_to(app)
        return app

    @web.middleware
    async def _check_host(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            if not origin_check.is_allowed_host(request.host, self._host, self._allowed_hosts):
                raise web.HTTPMisdirectedRequest(
                    text=f"{request.host} is not a name of this page: give it by --allowed-host"
                )
            response = await handler(request)
        except StoreGoneError as error:
            response = json_response({"error": str(error)}, 503)
        except QueryFailedError as error:
            response = json_response({"error": str(error)}, 502)
        except ValueError as error:
            response = json_response({"error": str(error)}, 400)
        except web.HTTPException as error:
            response = json_response({"error": error.text or error.reason}, error.status)
        response.headers.update(RESPONSE_HEADERS)
        response.headers[STORE_HEADER] = (
            StoreState.GONE if response.status == 503 else self._reader.state_of(request.query.get("run_id", ""))
        )
        return response

    async def _index(self, request: web.Request) -> web.StreamResponse:
        return web.FileResponse(STATIC / "index.html")

    async def _runs(self, request: web.Request) -> web.Response:
        times, sets, results, last_steps = await self._reader.query_all(
            {},
            run_state.EVENT_TIMES_OF_ALL,
            run_list.SETS,
            run_list.EVALUATION_RESULTS,
            run_state.LAST_STEPS_OF_ALL,
        )
        now_ms = time.time() * 1000
        state = self._reader.state_of("")
        runs = run_list.build_runs(times, sets, results, last_steps, self._members(""), state, now_ms)
        if state is StoreState.FINISHED:
            runs = [{**run, "state": await self._reader.settle_state(run["run_id"], run["state"])} for run in runs]
        others = await asyncio.to_thread(self._reader.list_others)
        labels = await asyncio.to_thread(self._reader.list_labels)
        return json_response(run_list.label_runs(run_list.merge_runs(runs, others), labels))

    def _members(self, run_id: str) -> Sequence[Heartbeat] | None:
        """List the living processes; None: no bus answers, or none that the run is on."""
        members = self._list_members()
        return None if isinstance(members, str) or self._reader.is_elsewhere(run_id) else members

    async def _fleet(self, request: web.Request) -> web.Response:
        members, run_id = self._list_members(), request.query.get("run_id", "")
        if self._reader.is_elsewhere(run_id):
            members = f"{run_id} is not the latest run, and only the latest run's bus is listened to"
        if isinstance(members, str):
            return json_response({"members": [], "problem": members})
        fields = ("role", "id", "run_id", "state", "version", "model", "status")
        rows = [{**{name: getattr(beat, name) for name in fields}, "doing": describe(beat)} for beat in members]
        return json_response({"members": rows, "problem": ""})


@asynccontextmanager
async def serve(pages: UiServer, host: str, port: int) -> AsyncIterator[str]:
    """Serve the page on one address while the block runs; yields its URL for others. Raises `AddressInUseError`."""
    listener = open_listener(host, port, "--port", "give another, or 0")
    async with serve_without_password(pages.application(), host, listener, "the page", OPEN_PAGE) as url:
        yield url
