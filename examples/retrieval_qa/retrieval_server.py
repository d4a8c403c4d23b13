"""One process that searches for every agent of this machine: ``python retrieval_server.py CORPUS``.

``POST /search {"query": "...", "count": 2}`` answers ``{"passages": [{"number", "score", "text"}, ...]}``, nearest
first. ``GET /health`` says what is searched. It listens on 127.0.0.1 only, once the index is there.

Queries that come while a batch is searched are the next batch: nobody waits for a batch to fill.
"""

import argparse
import asyncio
import contextlib
import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import uvicorn
from retrieval import Hit, Retriever, add_options, make_retriever
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

PORT = 8401
MAX_COUNT = 100
MAX_BYTES = 1024 * 1024
"""Of a request; a query of many words is cut by the embedding model."""
MAX_BATCH, MAX_WAITING = 32, 1024

Waiting = tuple[str, int, "asyncio.Future[list[Hit]]"]
"""A query, how many passages it asks for, and who waits for them."""


class Batcher:
    """Searches in batches, one after the other, in a thread."""

    def __init__(self, retriever: Retriever) -> None:
        self._retriever = retriever
        self._waiting: asyncio.Queue[Waiting] = asyncio.Queue(MAX_WAITING)
        self.num_searches = self.num_batches = 0

    async def search(self, query: str, count: int) -> list[Hit]:
        """The passages nearest to a query; raises asyncio.QueueFull when too many wait already."""
        future: asyncio.Future[list[Hit]] = asyncio.get_running_loop().create_future()
        self._waiting.put_nowait((query, count, future))
        return await future

    async def run(self) -> None:
        """Search until cancelled."""
        while True:
            batch = [await self._waiting.get()]
            while len(batch) < MAX_BATCH and not self._waiting.empty():
                batch.append(self._waiting.get_nowait())
            self.num_searches, self.num_batches = self.num_searches + len(batch), self.num_batches + 1
            try:
                results = await asyncio.to_thread(self._search, batch)
            except Exception as error:  # whatever it is, who asked is told, and the next batch is searched
                print(f"search failed: {error!r}", file=sys.stderr, flush=True)
                for _, _, future in batch:
                    if not future.done():
                        future.set_exception(HTTPException(500, f"search failed: {error}"))
                continue
            for (_, _, future), result in zip(batch, results, strict=True):
                if not future.done():  # who asked may be gone
                    future.set_result(result)

    def _search(self, batch: Sequence[Waiting]) -> list[list[Hit]]:
        """Each query once, though several ask it."""
        queries = list(dict.fromkeys(query for query, _, _ in batch))
        results = self._retriever.search(queries, max(count for _, count, _ in batch))
        by_query = dict(zip(queries, results, strict=True))
        return [by_query[query][:count] for query, count, _ in batch]


def make_app(retriever: Retriever) -> Starlette:
    """The server of a retriever."""
    batcher = Batcher(retriever)

    async def search(request: Request) -> JSONResponse:
        query, count = parse_search(await read_body(request))
        try:
            hits = await batcher.search(query, count)
        except asyncio.QueueFull:
            raise HTTPException(503, f"{MAX_WAITING} searches wait already: ask again later") from None
        passages = [{"number": item.number, "score": round(item.score, 6), "text": item.text} for item in hits]
        return JSONResponse({"passages": passages})

    async def health(request: Request) -> JSONResponse:
        return JSONResponse(
            {
                "status": "ok",
                "passages": len(retriever.passages),
                "index": retriever.index.kind,
                "dimensions": retriever.index.dimensions,
                "searches": batcher.num_searches,
                "batches": batcher.num_batches,
            }
        )

    async def explain(request: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse({"error": error.detail}, status_code=error.status_code)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        searching = asyncio.create_task(batcher.run())
        try:
            yield
        finally:
            searching.cancel()

    routes = [Route("/search", search, methods=["POST"]), Route("/health", health)]
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: explain})


async def read_body(request: Request) -> bytes:
    """The body of a request; raises HTTPException if it is too large."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BYTES:
            raise HTTPException(413, f"a request has {MAX_BYTES:,} bytes at most")
    return body


def parse_search(body: bytes) -> tuple[str, int]:
    """Query and count of a request; raises HTTPException saying what is wrong with it."""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        raise HTTPException(400, "the request is not JSON") from None
    if not isinstance(fields, dict) or not isinstance(fields.get("query"), str):
        raise HTTPException(400, 'the request needs {"query": "...", "count": 2}')
    count = fields.get("count", 2)
    if type(count) is not int or not 1 <= count <= MAX_COUNT:
        raise HTTPException(400, f"count is an integer from 1 to {MAX_COUNT}")
    try:
        fields["query"].encode()
    except UnicodeEncodeError:
        raise HTTPException(400, "query has half a character (a lone surrogate)") from None
    return fields["query"], count


def bind(port: int) -> socket.socket:
    """A port of 127.0.0.1, 0 for a free one; nobody listens on it yet. Ends the process if it is taken."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # asyncio then sends at once
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except (OSError, OverflowError) as error:
        sys.exit(f"127.0.0.1:{port} cannot be listened on ({error}): stop what does, or choose another --port")
    return listener


def start_in_background(pid_file: Path) -> None:
    """Start this command again as a process of its own, and return once it listens; its log is beside the file."""
    options = [option for option in sys.argv[1:] if not option.startswith("--background")]
    options = [option for option in options if option != str(pid_file)]
    log = pid_file.with_suffix(".log")
    with log.open("w") as errors:
        server = subprocess.Popen(
            [sys.executable, __file__, *options],
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
            text=True,
        )
    assert server.stdout is not None
    line = next((line for line in server.stdout if line.startswith("http://")), "")  # FAISS prints there too
    if not line:
        server.wait()
        sys.exit(log.read_text().strip() or f"the server ended with status {server.returncode}")
    pid_file.write_text(f"{server.pid}\n")
    print(line, end="")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--port", type=int, default=PORT, help="of 127.0.0.1; 0: a free one, which is printed")
    parser.add_argument("--background", type=Path, metavar="PID_FILE", help="return once it listens; kill stops it")
    options = parser.parse_args()
    if options.background:
        start_in_background(options.background)
        return
    listener = bind(options.port)
    retriever = make_retriever(options)
    server = uvicorn.Server(uvicorn.Config(make_app(retriever), log_level="warning", access_log=False))
    listener.listen(128)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    print(f"{url}: {len(retriever.passages):,} passages, index {retriever.index.kind}", flush=True)
    server.run(sockets=[listener])


if __name__ == "__main__":
    main()
