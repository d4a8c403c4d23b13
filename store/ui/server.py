"""The pages and their JSON, over HTTP, for this machine's own browser.

Agents are not trusted and neither are other sites: nothing of what is shown is code, and a page that comes by another
name than those this server was told to listen on is refused, so that no site can have its own name point here.
"""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from schemas import ids
from schemas.fleet import Heartbeat
from store.embedded import origin_check
from store.ui import filters, queries
from store.ui.client import Reader, Row, Unanswered
from store.ui.rollout import attempts_of, calls_of, chosen, requests_of
from store.ui.tree import tree

STATIC = Path(__file__).parent / "static"
HEADERS = {
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
OF_A_RUN = {
    "pulse": queries.PULSE,
    "summary": queries.SUMMARY,
    "rewards": queries.REWARDS,
    "steps": queries.STEPS,
    "time": queries.TIME,
    "throughput": queries.THROUGHPUT,
    "served": queries.SERVED,
}
"""Questions with one parameter, by the last part of their path."""

Members = Callable[[], Sequence[Heartbeat] | str]
"""Who is alive, or a sentence why nobody knows."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class PortTaken(Exception):
    """The page cannot be served where it should."""


class Pages:
    """Answers one browser; ``members`` is asked at each look at the fleet."""

    def __init__(self, reader: Reader, host: str, members: Members) -> None:
        self._reader, self._host, self._members = reader, host, members

    def application(self) -> web.Application:
        """Everything it answers."""
        app = web.Application(middlewares=[self._guard])
        app.router.add_get("/", self._index)
        app.router.add_static("/static", STATIC)
        app.router.add_get("/api/runs", self._runs)
        app.router.add_get("/api/fleet", self._fleet)
        app.router.add_get("/api/run/rollouts", self._rollouts)
        app.router.add_get("/api/run/{question}", self._of_a_run)
        app.router.add_get("/api/rollout", self._rollout)
        app.router.add_get("/api/request", self._request)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            if not origin_check.named(request.host, self._host):
                raise web.HTTPMisdirectedRequest(text=f"{request.host} is not a name of this page")
            response = await handler(request)
        except Unanswered as error:
            response = _json({"error": str(error)}, 502)
        except ValueError as error:
            response = _json({"error": str(error)}, 400)
        except web.HTTPException as error:
            response = _json({"error": error.text or error.reason}, error.status)
        response.headers.update(HEADERS)
        return response

    async def _index(self, request: web.Request) -> web.StreamResponse:
        return web.FileResponse(STATIC / "index.html")

    async def _runs(self, request: web.Request) -> web.Response:
        return _json(await self._reader.rows(queries.RUNS))

    async def _fleet(self, request: web.Request) -> web.Response:
        members = self._members()
        if isinstance(members, str):
            return _json({"members": [], "problem": members})
        said = ("role", "id", "run_id", "state", "version", "model", "status")
        return _json({"members": [{name: getattr(one, name) for name in said} for one in members], "problem": ""})

    async def _of_a_run(self, request: web.Request) -> web.Response:
        question = OF_A_RUN.get(request.match_info["question"])
        if question is None:
            raise web.HTTPNotFound(text=f"there is no {request.path}")
        return _json(await self._reader.rows(question, run=_needed(request, "run")))

    async def _rollouts(self, request: web.Request) -> web.Response:
        run = _needed(request, "run")
        asked, values = filters.found(request.query)
        found = await self._reader.rows(asked, run=run, **values)
        names = [row["rollout"] for row in found]
        told = await self._reader.rows(filters.ROLLOUTS, run=run, rollouts=names) if names else []
        rows = {(row["rollout"], row["execution"]): row for row in told}
        return _json(
            {
                "rollouts": [rows[which] for row in found if (which := (row["rollout"], row["execution"])) in rows],
                "count": found[0]["count"] if found else 0,
                "page_size": filters.PAGE,
            }
        )

    async def _rollout(self, request: web.Request) -> web.Response:
        mine = {"run": _needed(request, "run"), "rollout": _needed(request, "rollout")}
        ended, seen = await self._each(mine, queries.ATTEMPTS, queries.EXECUTIONS)
        attempts = attempts_of(ended, seen)
        task = [] if attempts else await self._reader.rows(queries.TASK, **mine)
        if not attempts and not task:
            raise web.HTTPNotFound(text=f"no rollout of run {mine['run']} is called {mine['rollout']}")
        attempt = chosen(attempts, request.query.get("execution", ""))
        if attempt is None and attempts:
            raise web.HTTPNotFound(text=f"{mine['rollout']} has no such attempt")
        mine["execution"] = attempt["execution"] if attempt else ""
        asked = (queries.SPANS, queries.CALLS, queries.CONTENTS, queries.USES)
        spans, calls, contents, uses = await self._each(mine, *asked)
        root = ids.root_span_id(mine["rollout"], mine["execution"])
        return _json(
            {
                **mine,
                "task": task[0] if task else None,
                "attempts": attempts,
                "attempt": attempt,
                "spans": await asyncio.to_thread(tree, spans, calls, contents, root),
                "spans_cut": len(spans) == queries.MOST_SPANS,
                "uses": [{name: value for name, value in use.items() if name != "credit"} for use in uses],
                "calls": calls_of(calls, contents, uses),
            }
        )

    async def _request(self, request: web.Request) -> web.Response:
        which = {name: _needed(request, name) for name in ("run", "rollout", "execution")}
        whole = requests_of(await self._reader.rows(queries.CONTENTS, **which))
        for call, text in whole.items():
            if str(call) == _needed(request, "call"):
                return _json({"request": text})
        raise web.HTTPNotFound(text="there is no such call")

    async def _each(self, values: dict[str, Any], *asked: str) -> list[list[Row]]:
        return await asyncio.gather(*(self._reader.rows(sql, **values) for sql in asked))


@asynccontextmanager
async def serving(pages: Pages, host: str, port: int) -> AsyncIterator[str]:
    """The pages on one address while the block runs; yields their URL. Raises `PortTaken`."""
    runner = web.AppRunner(pages.application(), access_log=None, shutdown_timeout=1)
    try:
        listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise PortTaken(f"--port: cannot listen on {host}:{port}: {error.strerror}; give another, or 0") from error
    try:
        await runner.setup()
        await web.SockSite(runner, listener).start()
        shown = f"[{host}]" if ":" in host else host
        yield f"http://{shown}:{listener.getsockname()[1]}"
    finally:
        await runner.cleanup()


def _needed(request: web.Request, name: str) -> str:
    value = request.query.get(name, "")
    if not value:
        raise ValueError(f"{name} is missing")
    return value


def _json(value: Any, status: int = 200) -> web.Response:
    return web.json_response(value, status=status, dumps=lambda one: json.dumps(one, default=str, ensure_ascii=False))
