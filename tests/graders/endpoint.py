"""A scripted OpenAI-compatible endpoint that judges."""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

Answer = Callable[[str], str]


class JudgeEndpoint:
    """Answers with ``answer`` of what the user message holds; ``faults`` are statuses that are played first."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.faults: deque[int] = deque()
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.num_at_once = self.most_at_once = 0
        self.seconds = 0.0
        self.url = ""

    async def _complete(self, request: web.Request) -> web.Response:
        self.num_at_once += 1
        self.most_at_once = max(self.most_at_once, self.num_at_once)
        try:
            body = await request.json()
            self.requests.append(body)
            self.keys.append(request.headers.get("Authorization", ""))
            if self.seconds:
                await asyncio.sleep(self.seconds)
            if self.faults and (status := self.faults.popleft()):
                return web.json_response({"error": "no"}, status=status)
            message = {"role": "assistant", "content": self.answer(body["messages"][-1]["content"])}
            usage = {"prompt_tokens": 100, "completion_tokens": 10}
            return web.json_response({"choices": [{"message": message}], "usage": usage})
        finally:
            self.num_at_once -= 1


@asynccontextmanager
async def judging(answer: Answer) -> AsyncIterator[JudgeEndpoint]:
    """Serve while the block runs."""
    endpoint = JudgeEndpoint(answer)
    app = web.Application()
    app.router.add_post("/v1/chat/completions", endpoint._complete)
    server = web.AppRunner(app)
    await server.setup()
    await web.TCPSite(server, "127.0.0.1", 0).start()
    endpoint.url = f"http://127.0.0.1:{server.addresses[0][1]}/v1"
    try:
        yield endpoint
    finally:
        await server.cleanup()


def score_of(text: str) -> str:
    """A judge that gives the number in the result, after a thought."""
    number = text.rpartition("<result>\n")[2].partition("\n")[0]
    return "I think {so}.\n" + json.dumps({"score": float(number)})


def greater_of(text: str) -> str:
    """A judge that prefers the greater number."""
    first, second = (
        float(text.partition(f"<{name}>")[2].partition("<result>\n")[2].partition("\n")[0])
        for name in ("first", "second")
    )
    return json.dumps({"better": "tie" if first == second else "first" if first > second else "second"})
