"""Routes of the page about one run: its state, the figures at its head, and the rows of its charts."""

import asyncio
import time
from collections.abc import Callable, Sequence

from aiohttp import web

from lightningbus.schemas.fleet import Heartbeat
from lightningbus.schemas.step_metrics import describe_metric
from lightningbus.store.reports.merged_points import merge_thin_points
from lightningbus.store.ui import curves, progress, queries, run_list, run_state
from lightningbus.store.ui.client import QueryRow, StoreState
from lightningbus.store.ui.other_run import RunReader
from lightningbus.store.ui.responses import json_response, require_param
from lightningbus.store.ui.rollouts import queries as rollout_queries

RUN_QUERIES = {
    "change_token": queries.CHANGE_TOKEN,
    "models": queries.MODELS,
    "summary": queries.SUMMARY,
    "settings": curves.SETTINGS,
    "axes": progress.AXES,
    "time": queries.TIME,
    "throughput": curves.THROUGHPUT,
    "idle_nodes": curves.IDLE_NODES,
    "trained": queries.TRAINED,
    "served": queries.ACTIVATIONS,
    "last_seen": queries.LAST_SEEN,
    "alerts": queries.ALERTS,
    "choices": rollout_queries.CHOICES,
}
"""Queries of a run, and of one of its models where they have one, by the last part of their path."""


class RunRoutes:
    """The routes, for the application of `lightningbus.store.ui.server`; ``list_members`` gives living processes."""

    def __init__(self, reader: RunReader, list_members: Callable[[str], Sequence[Heartbeat] | None]) -> None:
        self._reader, self._list_members = reader, list_members

    def add_to(self, app: web.Application) -> None:
        """Add all routes."""
        app.router.add_get("/api/run/metrics", self._metrics)
        app.router.add_get("/api/run/metric_names", self._metric_names)
        app.router.add_get("/api/run/rewards", self._rewards)
        app.router.add_get("/api/run/named_rewards", self._named_rewards)
        app.router.add_get("/api/run/overview", self._overview)
        app.router.add_get("/api/run/state", self._state)
        app.router.add_get("/api/run/audit", self._audit)
        app.router.add_get("/api/run/{question}", self._answer)

    async def _state(self, request: web.Request) -> web.Response:
        run_id = require_param(request, "run_id")
        times, last_steps = await self._reader.query_all(
            {"run_id": run_id}, run_state.EVENT_TIMES_OF_RUN, run_state.LAST_STEPS_OF_RUN
        )
        num_events, last_ms = (times[0]["events"], times[0]["last_ms"]) if times else (0, None)
        state = run_state.choose_state(
            num_events,
            time.time() - (last_ms or 0) / 1000,
            run_list.parse_steps(last_steps),
            run_list.select_learners(self._list_members(run_id), run_id),
            self._reader.state_of(run_id),
        )
        if self._reader.state_of(run_id) is StoreState.FINISHED:
            state = await self._reader.settle_state(run_id, state)
        return json_response({"state": state, "last_ms": last_ms})

    async def _answer(self, request: web.Request) -> web.Response:
        question = RUN_QUERIES.get(request.match_info["question"])
        if question is None:
            raise web.HTTPNotFound(text=f"there is no {request.path}")
        return json_response(await self._reader.query(question, **_run_of(request)))

    async def _metrics(self, request: web.Request) -> web.Response:
        run_id = require_param(request, "run_id")
        sql, values = curves.build_metrics_query(request.query)
        return json_response(await self._reader.query(sql, run_id=run_id, **values))

    async def _metric_names(self, request: web.Request) -> web.Response:
        rows = await self._reader.query(curves.METRIC_NAMES, **_run_of(request))
        return json_response([{**row, **describe_metric(row["name"])} for row in rows])

    async def _rewards(self, request: web.Request) -> web.Response:
        return json_response(await self._read_rewards(queries.REWARDS, request))

    async def _named_rewards(self, request: web.Request) -> web.Response:
        if not await self._reader.query(queries.HAS_NAMED_REWARDS, run_id=require_param(request, "run_id")):
            return json_response([])
        return json_response(await self._read_rewards(queries.NAMED_REWARDS, request))

    async def _audit(self, request: web.Request) -> web.Response:
        values = _run_of(request)
        if not await self._reader.query(queries.HAS_AUDITS, run_id=values["run_id"]):  # what it costs is not little
            return json_response([{"tokens": 0, "differing": 0, "quarantined": 0, "trained_before": 0}])
        return json_response(await self._reader.query(queries.AUDIT, **values))

    async def _read_rewards(self, sql: str, request: web.Request) -> list[QueryRow]:
        return merge_thin_points(await self._reader.query(sql, **_run_of(request)))

    async def _overview(self, request: web.Request) -> web.Response:
        values = _run_of(request)
        (axes, speed, cost, settings), rewards = await asyncio.gather(
            self._reader.query_all(values, progress.AXES, progress.SPEED, progress.COST, curves.SETTINGS),
            self._read_rewards(queries.REWARDS, request),
        )
        of_model = [row for row in settings if values["model"] in ("", row["model"])]
        now_ms = time.time() * 1000
        return json_response(progress.build_overview(axes, speed, cost, of_model, rewards, now_ms))


def _run_of(request: web.Request) -> dict[str, str]:
    return {"run_id": require_param(request, "run_id"), "model": request.query.get("model", "")}
