"""A scripted OpenAI-compatible endpoint that judges."""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

Answer = Callable[[str], str]
Refusal = Callable[[dict[str, Any]], dict[str, Any] | None]


class JudgeEndpoint:
    """Answers with ``answer`` of what the user message holds; ``faults`` are statuses that are played first."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.refuse: Refusal = lambda body: None
        """Gives the error that a request is refused with."""
        self.usage: Any = {"prompt_tokens": 100, "completion_tokens": 10}
        self.faults: deque[int] = deque()
        self.headers: dict[str, str] = {}
        """Headers of the faults."""
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
                return web.json_response({"error": "no"}, status=status, headers=self.headers)
            if error := self.refuse(body):
                return web.json_response(error, status=400)
            message = {"role": "assistant", "content": self.answer(body["messages"][-1]["content"])}
            return web.json_response({"choices": [{"message": message}], "usage": self.usage})
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


def as_a_reasoning_model(body: dict[str, Any]) -> dict[str, Any] | None:
    """Refuse what OpenAI's reasoning models refuse, in their words."""
    if "max_tokens" in body:
        param, code = "max_tokens", "unsupported_parameter"
        message = "'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
    elif body.get("temperature", 1) != 1:
        param, code = "temperature", "unsupported_value"
        message = "'temperature' does not support 0 with this model. Only the default (1) value is supported."
    else:
        return None
    return {"error": {"message": message, "type": "invalid_request_error", "param": param, "code": code}}


def as_a_strict_server(body: dict[str, Any]) -> dict[str, Any] | None:
    """Refuse every field of sampling at once, as servers on pydantic do."""
    extra = [name for name in ("temperature", "max_tokens", "max_completion_tokens") if name in body]
    details = [
        {"type": "extra_forbidden", "loc": ["body", name], "msg": "Extra inputs are not permitted", "input": body[name]}
        for name in extra
    ]
    return {"detail": details} if details else None


def as_a_small_model(body: dict[str, Any]) -> dict[str, Any] | None:
    """Refuse the number of tokens, as vLLM does."""
    message = (
        f"'max_tokens' or 'max_completion_tokens' is too large: {body.get('max_tokens')}. This model's maximum context "
        "length is 512 tokens and your request has 100 input tokens."
    )
    return {"error": {"message": message, "type": "BadRequestError", "param": "max_tokens", "code": 400}}
