"""A teacher's server: vLLM's two routes on a model of transformers, which can be away, and counts what it is asked."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from aiohttp import web
from aiohttp.test_utils import TestServer
from transformers import AutoModelForCausalLM, AutoTokenizer


class ScriptedTeacher:
    """Answers as vLLM's OpenAI server does."""

    def __init__(self, model_path: Path, max_model_len: int = 128, key: str = "", max_logprobs: int = 20) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
        self._tokenizer = AutoTokenizer.from_pretrained(model_path)
        self._max_model_len, self._key, self._max_logprobs = max_model_len, key, max_logprobs
        self.counts: Counter[tuple[int, ...]] = Counter()
        """How often each sequence was scored."""
        self.is_away = False
        self.proxy_answer: tuple[int, bytes] | None = None
        """Status and body with which a proxy answers in its place; None: there is no proxy."""
        self.refused = asyncio.Event()
        """Set when a request came while it was away, or a proxy answered."""
        self.gate = asyncio.Event()
        """Answers wait for it."""
        self.gate.set()
        self.num_open = self.most_open = 0
        app = web.Application(middlewares=[self._stand_before])
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_post("/v1/completions", self._complete)
        self._server = TestServer(app)

    async def __aenter__(self) -> "ScriptedTeacher":
        await self._server.start_server()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.close()

    @property
    def url(self) -> str:
        return str(self._server.make_url("/"))

    def score(self, token_ids: list[int]) -> list[float]:
        """The log-probability of each token but the first."""
        return self.log_probs(token_ids).gather(1, torch.tensor(token_ids[1:])[:, None])[:, 0].tolist()

    def log_probs(self, token_ids: list[int]) -> torch.Tensor:
        """Those of all tokens in the place of each but the first, ``float32[N - 1, vocabulary]``."""
        with torch.no_grad():
            return torch.log_softmax(self._model(input_ids=torch.tensor([token_ids])).logits[0, :-1], -1)

    @web.middleware
    async def _stand_before(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if self.proxy_answer is None:
            return await handler(request)
        self.refused.set()
        status, body = self.proxy_answer
        return web.Response(status=status, body=body)

    async def _tokenize(self, request: web.Request) -> web.Response:
        if self.is_away:
            self.refused.set()
            return web.Response(status=503, text="starting")
        body = await request.json()
        ids = self._tokenizer(body["prompt"], add_special_tokens=body["add_special_tokens"])["input_ids"]
        return web.json_response({"tokens": list(ids), "count": len(ids)})

    async def _complete(self, request: web.Request) -> web.Response:
        if self._key and request.headers.get("Authorization") != f"Bearer {self._key}":
            return web.json_response({"error": "no key"}, status=401)
        if self.is_away:
            self.refused.set()
            return web.Response(status=503, text="starting")
        body: dict[str, Any] = await request.json()
        ids: list[int] = body["prompt"]
        if len(ids) >= self._max_model_len:
            return web.json_response({"error": "maximum context length"}, status=400)
        top_k = body["prompt_logprobs"]
        if top_k > self._max_logprobs:
            text = f"Requested prompt logprobs of {top_k}, which is greater than max allowed: {self._max_logprobs}"
            return web.json_response({"error": text}, status=400)
        assert body["max_tokens"] == 1
        self.num_open += 1
        self.most_open = max(self.most_open, self.num_open)
        await self.gate.wait()
        self.num_open -= 1
        self.counts[tuple(ids)] += 1
        entries: list[Any] = [None]
        for token, every in zip(ids[1:], self.log_probs(ids), strict=True):
            chosen = [token, *every.topk(top_k).indices.tolist()]  # as vLLM does: the token first, and once
            entries.append({str(id): {"logprob": every[id].item(), "rank": 1} for id in chosen})
        return web.json_response({"choices": [{"prompt_logprobs": entries}]})
