"""Serves the web page and its JSON over HTTP to a browser on this machine.

Neither agents nor other sites are trusted: no text of an agent becomes code, and requests for a host name other than
this server's are refused, which stops DNS rebinding.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from bus.fleet.node_state import DONE
from common.listeners import open_listener, serve_app, url_of
from schemas import ids
from schemas.fleet import Heartbeat
from store.embedded import origin_check
from store.ui import curves, filters, queries, run_list
from store.ui.client import QueryFailed, QueryRow, Reader
from store.ui.rollout import build_attempts, build_calls, expand_requests, select_attempt
from store.ui.tree import build_tree

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
RUN_QUERIES = {
    "pulse": queries.CHANGE_TOKEN,
    "summary": queries.SUMMARY,
    "rewards": queries.REWARDS,
    "metric_names": curves.METRIC_NAMES,
    "settings": curves.SETTINGS,
    "time": queries.TIME,
    "throughput": curves.THROUGHPUT,
    "idle_nodes": curves.IDLE_NODES,
    "trained": queries.TRAINED,
    "served": queries.ACTIVATIONS,
    "audit": queries.AUDIT,
}
"""Queries with one parameter, by the last part of their path."""

ListMembers = Callable[[], Sequence[Heartbeat] | str]
"""The living processes, or a sentence why they are unknown."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class UiServer:
    """The page's application; ``members`` is called for each view of the fleet."""

    def __init__(self, reader: Reader, host: str, members: ListMembers) -> None:
        self._reader, self._host, self._list_members = reader, host, members

    def application(self) -> web.Application:
        """The application with all routes."""
        app = web.Application(middlewares=[self._check_host])
        app.router.add_get("/", self._index)
        app.router.add_static("/static", STATIC)
        app.router.add_get("/api/runs", self._runs)
        app.router.add_get("/api/fleet", self._fleet)
        app.router.add_get("/api/run/rollouts", self._rollouts)
        app.router.add_get("/api/run/metrics", self._metrics)
        app.router.add_get("/api/run/{question}", self._run_query)
        app.router.add_get("/api/rollout", self._rollout)
        app.router.add_get("/api/request", self._request)
        return app

    @web.middleware
    async def _check_host(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            if not origin_check.is_allowed_host(request.host, self._host):
                raise web.HTTPMisdirectedRequest(text=f"{request.host} is not a name of this page")
            response = await handler(request)
        except QueryFailed as error:
            response = _json({"error": str(error)}, 502)
        except ValueError as error:
            response = _json({"error": str(error)}, 400)
        except web.HTTPException as error:
            response = _json({"error": error.text or error.reason}, error.status)
        response.headers.update(RESPONSE_HEADERS)
        return response

    async def _index(self, request: web.Request) -> web.StreamResponse:
        return web.FileResponse(STATIC / "index.html")

    async def _runs(self, request: web.Request) -> web.Response:
        members = self._list_members()
        learners = (
            None
            if isinstance(members, str)
            else {beat.run_id for beat in members if beat.role == "learner" and beat.state != DONE}
        )
        queries_of_runs = (run_list.SETS, run_list.EVALUATION_RESULTS, run_list.LAST_STEPS)
        sets, results, last_steps = await self._query_all({}, *queries_of_runs)
        return _json(run_list.build_runs(sets, results, last_steps, learners, now_ms=time.time() * 1000))

    async def _fleet(self, request: web.Request) -> web.Response:
        members = self._list_members()
        if isinstance(members, str):
            return _json({"members": [], "problem": members})
        fields = ("role", "id", "run_id", "state", "version", "model", "status")
        return _json(
            {"members": [{name: getattr(heartbeat, name) for name in fields} for heartbeat in members], "problem": ""}
        )

    async def _run_query(self, request: web.Request) -> web.Response:
        question = RUN_QUERIES.get(request.match_info["question"])
        if question is None:
            raise web.HTTPNotFound(text=f"there is no {request.path}")
        return _json(await self._reader.query(question, run_id=_require_param(request, "run_id")))

    async def _metrics(self, request: web.Request) -> web.Response:
        run_id = _require_param(request, "run_id")
        sql, values = curves.build_metrics_query(request.query)
        return _json(await self._reader.query(sql, run_id=run_id, **values))

    async def _rollouts(self, request: web.Request) -> web.Response:
        run_id = _require_param(request, "run_id")
        sql, values = filters.build_query(request.query)
        matches = await self._reader.query(sql, run_id=run_id, **values)
        names = [row["rollout_id"] for row in matches]
        summaries = await self._reader.query(filters.ROLLOUTS, run_id=run_id, rollouts=names) if names else []
        rows = {(row["rollout_id"], row["execution_id"]): row for row in summaries}
        return _json(
            {
                "rollouts": [
                    rows[identity] for row in matches if (identity := (row["rollout_id"], row["execution_id"])) in rows
                ],
                "count": matches[0]["count"] if matches else 0,
                "page_size": filters.PAGE_SIZE,
            }
        )

    async def _rollout(self, request: web.Request) -> web.Response:
        key = {"run_id": _require_param(request, "run_id"), "rollout_id": _require_param(request, "rollout_id")}
        ended, executions = await self._query_all(key, queries.ATTEMPTS, queries.EXECUTIONS)
        attempts = build_attempts(ended, executions)
        task = [] if attempts else await self._reader.query(queries.TASK, **key)
        if not attempts and not task:
            raise web.HTTPNotFound(text=f"no rollout of run {key['run_id']} is called {key['rollout_id']}")
        attempt = select_attempt(attempts, request.query.get("execution_id", ""))
        if attempt is None and attempts:
            raise web.HTTPNotFound(text=f"{key['rollout_id']} has no such attempt")
        key["execution_id"] = attempt["execution_id"] if attempt else ""
        queries_of_attempt = (queries.SPANS, queries.CALLS, queries.CALL_PAYLOADS, queries.TRAINING_ROLLOUTS)
        spans, calls, contents, uses = await self._query_all(key, *queries_of_attempt)
        root = ids.root_span_id(key["rollout_id"], key["execution_id"])
        return _json(
            {
                **key,
                "task": task[0] if task else None,
                "attempts": attempts,
                "attempt": attempt,
                "spans": await asyncio.to_thread(build_tree, spans, calls, contents, root),
                "spans_cut": len(spans) == queries.MAX_SPANS,
                "uses": [{name: value for name, value in use.items() if name != "call_advantages"} for use in uses],
                "calls": build_calls(calls, contents, uses),
            }
        )

    async def _request(self, request: web.Request) -> web.Response:
        identity = {name: _require_param(request, name) for name in ("run_id", "rollout_id", "execution_id")}
        whole = expand_requests(await self._reader.query(queries.CALL_PAYLOADS, **identity))
        for call, text in whole.items():
            if str(call) == _require_param(request, "call"):
                return _json({"request": text})
        raise web.HTTPNotFound(text="there is no such call")

    async def _query_all(self, values: dict[str, Any], *statements: str) -> list[list[QueryRow]]:
        return await asyncio.gather(*(self._reader.query(sql, **values) for sql in statements))


@asynccontextmanager
async def serve(pages: UiServer, host: str, port: int) -> AsyncIterator[str]:
    """Serve the page on one address while the block runs; yields its URL. Raises `AddressInUseError`."""
    listener = open_listener(host, port, "--port", "give another, or 0")
    async with serve_app(pages.application(), listener):
        yield url_of(host, listener)


def _require_param(request: web.Request, name: str) -> str:
    value = request.query.get(name, "")
    if not value:
        raise ValueError(f"{name} is missing")
    return value


def _json(value: Any, status: int = 200) -> web.Response:
    return web.json_response(value, status=status, dumps=lambda item: json.dumps(item, default=str, ensure_ascii=False))
