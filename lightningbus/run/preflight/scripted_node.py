"""An inference node that gives scripted answers of one token, to try an agent before there is a model."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from zlib import crc32

from aiohttp import web

from lightningbus.run.preflight.scripted_engine import ModelCall
from lightningbus.schemas.fleet import Heartbeat

TOKEN_ID, LOGPROB, WEIGHT_VERSION = 42, -0.5, 0
PROMPT_IDS = [1, 2, 3]
"""The tokens of any prompt."""
MAX_REQUEST_BYTES = 64 * 1024 * 1024


class ScriptedNode:
    """The only node of its fleet; it streams to the gateway as a real node does."""

    def __init__(self, models: Sequence[str], answers: Sequence[str]) -> None:
        """Prepare to serve ``models``, with ``answers`` call after call, of which the last one goes on."""
        self._models, self._answers = models, answers
        self._members: list[Heartbeat] = []
        self.calls: list[ModelCall] = []
        """Model calls received, in order."""

    def members(self) -> Sequence[Heartbeat]:
        """Return this node while it serves."""
        return self._members

    def suspect(self, role: str, id: str) -> None:
        """Do nothing, since there is no other node."""

    async def wait_for_change(self) -> None:
        """Wait for a change of the fleet, which never comes."""
        await asyncio.Event().wait()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["ScriptedNode"]:
        """Serve on a free loopback port while the block runs."""
        app = web.Application(client_max_size=MAX_REQUEST_BYTES)
        app.router.add_post("/v1/chat/completions", self._answer)
        app.router.add_post("/v1/completions", self._answer)
        app.router.add_post("/tokenize", self._tokenize)
        server = web.AppRunner(app, access_log=None)
        await server.setup()
        try:
            await web.TCPSite(server, "127.0.0.1", 0).start()
            address = f"http://127.0.0.1:{server.addresses[0][1]}"
            self._members += [
                Heartbeat(
                    role="inference",
                    id=f"scripted-{model}",
                    state="ready",
                    address=address,
                    model=model,
                    version=WEIGHT_VERSION,
                    sent_at_ns=time.time_ns(),
                )
                for model in self._models
            ]
            yield self
        finally:
            self._members.clear()
            await server.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.calls.append(ModelCall(request.path, body))
        chat, num_choices = "messages" in body, body.get("n") or 1
        head: dict[str, Any] = {
            "id": f"chatcmpl-{time.time_ns():032x}",
            "object": "chat.completion.chunk" if chat else "text_completion",  # OpenAI's stream helper reads no others
            "model": body.get("model"),
            "created": int(time.time()),
        }
        answer = self._answers[min(len(self.calls), len(self._answers)) - 1]
        choices = [_choice(index, chat, answer) for index in range(num_choices)]
        usage = {
            "prompt_tokens": len(PROMPT_IDS),
            "completion_tokens": num_choices,
            "total_tokens": len(PROMPT_IDS) + num_choices,
        }
        chunk = {**head, "choices": choices, "prompt_token_ids": PROMPT_IDS, "weight_version": WEIGHT_VERSION}
        events = (json.dumps(event) for event in (chunk, {**head, "choices": [], "usage": usage}))
        text = "".join(f"data: {event}\n\n" for event in events)
        return web.Response(text=f"{text}data: [DONE]\n\n", content_type="text/event-stream")

    async def _tokenize(self, request: web.Request) -> web.Response:
        """Render different chats to different tokens: a gateway that sees none left out changes no chat."""
        return web.json_response({"tokens": [*PROMPT_IDS, crc32(await request.read())]})


def _choice(index: int, chat: bool, answer: str) -> dict[str, Any]:
    """Build one choice of the only chunk of an answer."""
    choice: dict[str, Any] = {"index": index, "finish_reason": "stop", "token_ids": [TOKEN_ID]}
    if chat:
        choice["delta"] = {"role": "assistant", "content": answer}
        choice["logprobs"] = {"content": [{"token": answer, "logprob": LOGPROB}]}
    else:
        choice["text"] = answer
        choice["logprobs"] = {"tokens": [answer], "token_logprobs": [LOGPROB]}
        choice["prompt_token_ids"] = PROMPT_IDS
    return choice
