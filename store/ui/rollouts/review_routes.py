"""Routes about reviews: those of a rollout, a new one, and the data sets of a run as files."""

import time
from collections.abc import Awaitable, Callable

from aiohttp import web

from lightningbus.schemas.reviews import RolloutReviewed
from lightningbus.store.embedded.origin_check import is_cross_site
from lightningbus.store.ui.client import QueryFailedError, QueryRow, StoreGoneError
from lightningbus.store.ui.other_run import RunReader
from lightningbus.store.ui.responses import json_response, require_param
from lightningbus.store.ui.rollouts import reviews

Publish = Callable[[RolloutReviewed], Awaitable[str]]
"""Publishes a review on the bus; returns an empty text, or a sentence why it could not."""


class ReviewRoutes:
    """The routes, for the application of `lightningbus.store.ui.server`; without ``publish`` no review is taken."""

    def __init__(self, reader: RunReader, publish: Publish | None) -> None:
        self._reader, self._publish = reader, publish

    def add_to(self, app: web.Application) -> None:
        """Add all routes."""
        app.router.add_get("/api/rollout/reviews", self._list)
        app.router.add_post("/api/rollout/reviews", self._add)
        app.router.add_get("/api/run/dataset", self._export)

    async def _list(self, request: web.Request) -> web.Response:
        values = {name: require_param(request, name) for name in ("run_id", "rollout_id")}
        answer = {"reviews": await self._read(reviews.REVIEWS, **values)}
        return json_response(answer | {"datasets": await self._read(reviews.DATASETS, run_id=values["run_id"])})

    async def _read(self, sql: str, **values: str) -> list[QueryRow]:
        """Read reviews; there are none in the files of a run that was written before there were any."""
        try:
            return await self._reader.query(sql, **values)
        except StoreGoneError:
            raise
        except QueryFailedError as error:
            if "reviews" in str(error):
                return []
            raise

    async def _add(self, request: web.Request) -> web.Response:
        if is_cross_site(request.headers) or request.content_type != "application/json":
            raise web.HTTPForbidden(text="a review is JSON, and sent by this page alone")
        review = reviews.parse_review(await request.read(), time.time_ns())
        if self._reader.is_elsewhere(review.run_id):
            raise web.HTTPConflict(text=f"{review.run_id} is not the latest run, and only its bus takes reviews")
        problem = "no bus takes reviews here" if self._publish is None else await self._publish(review)
        if problem:
            raise web.HTTPConflict(text=f"a review is an event on the run's bus, and none takes it: {problem}")
        return json_response({"review": review.rollout_id})

    async def _export(self, request: web.Request) -> web.Response:
        values = {name: require_param(request, name) for name in ("run_id", "dataset")}
        kind = require_param(request, "kind")
        if kind not in reviews.KINDS:
            raise ValueError(f"kind: {kind!r} is none of {', '.join(reviews.KINDS)}")
        if kind == "tasks":
            lines = reviews.write_tasks(await self._reader.query(reviews.TASKS, **values))
        else:
            lines = reviews.write_chats(await self._reader.query(reviews.PAYLOADS, **values))
        name = "".join(letter if letter.isalnum() and letter.isascii() else "-" for letter in values["dataset"])
        headers = {"Content-Disposition": f'attachment; filename="{name}-{kind}.jsonl"'}
        text = "".join(f"{line}\n" for line in lines)
        return web.Response(text=text, content_type="application/jsonl", headers=headers)
