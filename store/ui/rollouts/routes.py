"""Routes of the page about rollouts: the list, one of them, its group, and two of them compared."""

import asyncio
from collections.abc import Callable, Sequence

from aiohttp import web

from lightningbus.schemas import ids
from lightningbus.store.ui import queries
from lightningbus.store.ui.client import QueryRow
from lightningbus.store.ui.other_run import RunReader
from lightningbus.store.ui.responses import json_response, require_param
from lightningbus.store.ui.rollouts import filters
from lightningbus.store.ui.rollouts import queries as rollout_queries
from lightningbus.store.ui.rollouts.conversation import build_conversation
from lightningbus.store.ui.rollouts.diff import align, transcript_of
from lightningbus.store.ui.rollouts.findings import add_usage, find_artifacts, find_judgements, find_output
from lightningbus.store.ui.rollouts.rollout import build_attempts, build_calls, expand_requests, select_attempt
from lightningbus.store.ui.rollouts.task_card import describe_task
from lightningbus.store.ui.rollouts.tree import build_tree

UNSHOWN = {"messages", "answer"}
"""Fields of a call that stand in the conversation."""


ReadTokens = Callable[[str, str, Sequence[int]], str]
"""Returns the text of tokens by run and model; raises LookupError with a sentence. Blocks."""


class RolloutRoutes:
    """The routes, for the application of `lightningbus.store.ui.server`."""

    def __init__(self, reader: RunReader, read_tokens: ReadTokens | None = None) -> None:
        self._reader, self._read_tokens = reader, read_tokens

    def add_to(self, app: web.Application) -> None:
        """Add all routes."""
        app.router.add_get("/api/run/rollouts", self._rollouts)
        app.router.add_get("/api/rollout", self._rollout)
        app.router.add_get("/api/rollout/group", self._group)
        app.router.add_get("/api/rollout/diff", self._diff)
        app.router.add_get("/api/request", self._request)
        app.router.add_get("/api/prompt", self._prompt)

    async def _rollouts(self, request: web.Request) -> web.Response:
        run_id = require_param(request, "run_id")
        sql, values = filters.build_query(request.query)
        matches = await self._reader.query(sql, run_id=run_id, **values)
        names = [row["rollout_id"] for row in matches]
        which = {"run_id": run_id, "rollouts": names}
        summaries, excerpts = (
            await self._reader.query_all(which, filters.ROLLOUTS, filters.EXCERPTS) if names else ([], [])
        )
        filters.add_excerpts(summaries, excerpts)
        rows = {(row["rollout_id"], row["execution_id"]): row for row in summaries}
        return json_response(
            {
                "rollouts": [
                    rows[identity] for row in matches if (identity := (row["rollout_id"], row["execution_id"])) in rows
                ],
                "count": matches[0]["count"] if matches else 0,
                "page_size": filters.PAGE_SIZE,
            }
        )

    async def _rollout(self, request: web.Request) -> web.Response:
        key = _rollout_key(request, "rollout_id")
        attempts, task = await asyncio.gather(self._attempts(key), self._reader.query(queries.TASK, **key))
        if not attempts and not task:
            raise web.HTTPNotFound(text=f"no rollout of run {key['run_id']} is called {key['rollout_id']}")
        attempt = select_attempt(attempts, request.query.get("execution_id", ""))
        if attempt is None and attempts:
            raise web.HTTPNotFound(text=f"{key['rollout_id']} has no such attempt")
        key["execution_id"] = attempt["execution_id"] if attempt else ""
        queries_of_attempt = (queries.SPANS, queries.CALLS, queries.CALL_PAYLOADS, queries.TRAINING_ROLLOUTS)
        spans, calls, contents, uses = await self._reader.query_all(key, *queries_of_attempt)
        rows = build_calls(calls, contents, uses)
        add_usage(rows, spans)
        root = ids.root_span_id(key["rollout_id"], key["execution_id"])
        return json_response(
            {
                **key,
                "task": task[0] | describe_task(task[0].pop("input")) if task else None,
                "conversation": build_conversation(rows),
                "judgements": find_judgements(spans),
                "artifacts": find_artifacts(spans),
                "printed": find_output(spans),
                "attempts": attempts,
                "attempt": attempt,
                "spans": await asyncio.to_thread(build_tree, spans, calls, contents, root),
                "spans_cut": len(spans) == queries.MAX_SPANS,
                "uses": [{name: value for name, value in use.items() if name != "call_advantages"} for use in uses],
                "calls": [{name: value for name, value in row.items() if name not in UNSHOWN} for row in rows],
            }
        )

    async def _request(self, request: web.Request) -> web.Response:
        identity = {name: require_param(request, name) for name in ("run_id", "rollout_id", "execution_id")}
        whole = expand_requests(await self._reader.query(queries.CALL_PAYLOADS, **identity))
        for call, text in whole.items():
            if str(call) == require_param(request, "call"):
                return json_response({"request": text})
        raise web.HTTPNotFound(text="there is no such call")

    async def _prompt(self, request: web.Request) -> web.Response:
        """Answer with the text of the tokens that the model read in one call."""
        run_id, rollout_id, execution_id, call = (
            require_param(request, name) for name in ("run_id", "rollout_id", "execution_id", "call")
        )
        key = {"run_id": run_id, "rollout_id": rollout_id, "execution_id": execution_id}
        rows = await self._reader.query(queries.PROMPT, **key, call=int(call))
        if not rows or not rows[0]["prompt_ids"]:
            raise web.HTTPNotFound(text="no token of this prompt is on record")
        if self._read_tokens is None:
            raise web.HTTPNotFound(text="this page has no tokenizers")
        try:
            text = await asyncio.to_thread(self._read_tokens, run_id, rows[0]["model"], rows[0]["prompt_ids"])
        except LookupError as error:
            raise web.HTTPNotFound(text=str(error.args[0])) from error
        return json_response({"prompt": text})

    async def _group(self, request: web.Request) -> web.Response:
        key = _rollout_key(request, "rollout_id")
        attempt = await self._counted_attempt(key)
        which = {**key, "mode": attempt["mode"], "evaluation": attempt["evaluation"], "task_id": attempt["task_id"]}
        members, (neighbours,) = await self._reader.query_all(which, rollout_queries.GROUP, rollout_queries.NEIGHBOURS)
        return json_response({"task_id": attempt["task_id"], "rollouts": members, **neighbours})

    async def _diff(self, request: web.Request) -> web.Response:
        sides = [await self._side(_rollout_key(request, name)) for name in ("a", "b")]
        rows = await asyncio.to_thread(align, *(transcript_of(calls) for _, calls in sides))
        return json_response({"a": sides[0][0], "b": sides[1][0], "rows": rows})

    async def _side(self, key: dict[str, str]) -> tuple[QueryRow, list[QueryRow]]:
        """Load the attempt that counts of a rollout, and its model calls."""
        attempt = await self._counted_attempt(key)
        values = {**key, "execution_id": attempt["execution_id"]}
        calls, contents = await self._reader.query_all(values, queries.CALLS, queries.CALL_PAYLOADS)
        return {**key, **attempt}, build_calls(calls, contents, [])

    async def _counted_attempt(self, key: dict[str, str]) -> QueryRow:
        attempt = select_attempt(await self._attempts(key), "")
        if attempt is None or "task_id" not in attempt:
            raise web.HTTPNotFound(
                text=f"no rollout of run {key['run_id']} that has ended is called {key['rollout_id']}"
            )
        return attempt

    async def _attempts(self, key: dict[str, str]) -> list[QueryRow]:
        return build_attempts(*await self._reader.query_all(key, queries.ATTEMPTS, queries.EXECUTIONS))


def _rollout_key(request: web.Request, name: str) -> dict[str, str]:
    """Read the run, and the rollout that a parameter names."""
    return {"run_id": require_param(request, "run_id"), "rollout_id": require_param(request, name)}
