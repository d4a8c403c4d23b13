"""A stand-in for vLLM's server where the engine is not the point: the same command line, the same HTTP, quick to start.

It reads every weight file it is told to load, stands still while it is paused, and samples as `tokens` says.
"""

import argparse
import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aiohttp import web
from safetensors import safe_open

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.chaos.tokens import LONGEST, ends, logprob, next_token, prompt_of, teacher_logprob


class Engine:
    """Weights, and whether it may sample now."""

    def __init__(self, model: Path, context: int, token_seconds: float, load_seconds: float) -> None:
        self.token_seconds = token_seconds
        self.vocabulary: int = json.loads((model / "config.json").read_text())["vocab_size"]
        self.context = context
        self.version = -1
        self.loading: int | None = -1
        self.adapters: dict[str, int] = {}
        self.running = asyncio.Event()
        self.running.set()
        self.load_seconds = load_seconds
        self.model = model
        self.teacher_seconds: float | None = None
        """How long it takes to score a prompt as a teacher; None: it is no teacher."""
        self.dies_amid = False
        """It is killed when it has the first tensor of a broadcast and each other engine is in the group."""
        self.members: list[str] = []
        """Keys in the broadcast's store that engines set when they are in the group."""

    async def pause(self, request: web.Request) -> web.Response:
        self.running.clear()
        return web.json_response({})

    async def resume(self, request: web.Request) -> web.Response:
        self.running.set()
        return web.json_response({})

    async def meet(self, request: web.Request) -> web.Response:
        question = (await request.json())["init_info"]
        if question:
            await asyncio.to_thread(self.join, self.meeting(**question))
        return web.json_response({})

    def receives(self) -> None:
        from lightningbus.inference.engine.worker.broadcast_receiver import (
            BroadcastReceiver,
            Rendezvous,
        )  # torch: most who use this stand-in have no need of it

        self.meeting, self.receiver = Rendezvous, BroadcastReceiver()

    def join(self, rendezvous: Any) -> None:
        self.receiver.join(rendezvous, 0)
        self.members = [f"{rendezvous.meeting}/member/{rank}" for rank in range(1, rendezvous.world)]
        self.receiver._store.set(self.members[rendezvous.rank - 1], "")

    def received(self, batch: Any) -> None:
        assert not self.running.is_set(), "weights are loaded while nothing is sampled"
        if self.dies_amid:
            self.receiver._store.wait(self.members)  # an engine that is still joining would only fetch the files
            os.kill(os.getpid(), signal.SIGKILL)

    async def load(self, request: web.Request) -> web.Response:
        reported = (await request.json())["update_info"]
        if "paths" not in reported:
            await asyncio.to_thread(self.receiver.receive, reported["content"], reported["size"], self.received)
            self.loading = None  # what was sent has no name
            return web.json_response({})
        path = reported["paths"][0]
        with safe_open(path, framework="np") as file:
            for name in file.keys():  # noqa: SIM118 - not a dict
                file.get_tensor(name)
        match = re.search(r"-(\d+)\.safetensors$", path)
        assert not self.running.is_set(), "weights are loaded while nothing is sampled"
        self.loading = int(match[1]) if match else -1  # a base
        await asyncio.sleep(self.load_seconds)  # as long as a large model takes
        return web.json_response({})

    async def finish(self, request: web.Request) -> web.Response:
        reported = int((await request.json())["weight_version"])
        self.version = reported if self.loading is None else self.loading
        return web.json_response({})

    async def add(self, request: web.Request) -> web.Response:
        body = await request.json()
        with safe_open(Path(body["lora_path"]) / "adapter_model.safetensors", framework="np") as file:
            assert list(file.keys()), "adapters lie where they are said to"
        self.adapters[body["lora_name"]] = int(body["lora_name"].partition("@")[2])
        return web.json_response({})

    async def remove(self, request: web.Request) -> web.Response:
        del self.adapters[(await request.json())["lora_name"]]
        return web.json_response({})

    async def nothing(self, request: web.Request) -> web.Response:
        return web.json_response({})

    async def workers(self, request: web.Request) -> web.Response:
        return web.json_response({"world_size": 1})

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "policy", "max_model_len": self.context}]})

    async def tokenize(self, request: web.Request) -> web.Response:
        from tokenizers import Tokenizer  # only teachers are asked

        body = await request.json()
        tokenizer = Tokenizer.from_file(str(self.model / "tokenizer.json"))
        tokens = tokenizer.encode(body["prompt"], add_special_tokens=body["add_special_tokens"]).ids
        return web.json_response({"count": len(tokens), "max_model_len": self.context, "tokens": tokens})

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        adapters = self.adapters.get(body["model"])
        if adapters is None and "@" in body["model"]:
            return web.json_response({"error": {"message": "no such adapters"}}, status=404)
        chat = request.path.endswith("/chat/completions")
        question = json.dumps(body["messages"]) if chat else body["prompt"]
        prompt = prompt_of(question, self.vocabulary) if isinstance(question, str) else question
        if not body.get("stream"):  # runners stream, nodes do not
            value = logprob(self.version if adapters is None else adapters)
            is_teacher = self.teacher_seconds is not None
            await asyncio.sleep(self.teacher_seconds or 0.0)  # as long as a forward pass takes
            return web.json_response({"choices": list(_scores(body, prompt, value, is_teacher))})
        limit = body.get("max_tokens") or LONGEST
        if len(prompt) + limit > self.context:
            return web.json_response({"error": {"message": "too long"}}, status=400)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        context = list(prompt)
        for place in range(limit):
            await asyncio.sleep(self.token_seconds)  # as long as a token takes
            await self.running.wait()
            token = next_token(context, self.vocabulary)
            context.append(token)
            version = self.version if adapters is None else adapters  # a swap may come amid an answer
            over = "stop" if ends(token) else "length" if place == limit - 1 else None
            await _say(response, _chunk(chat, token, over, logprob(version), prompt if not place else None))
            if over:
                break
        num_sampled = len(context) - len(prompt)
        await _say(response, {"choices": [], "usage": {"prompt_tokens": len(prompt), "completion_tokens": num_sampled}})
        await response.write(b"data: [DONE]\n\n")
        return response


def _scores(body: dict[str, Any], prompts: list[Any], value: float, is_teacher: bool) -> Iterator[dict[str, Any]]:
    """One choice for each prompt. A teacher gives each of its tokens another log-probability, others ``value``."""
    for index, prompt in enumerate(prompts if isinstance(prompts[0], list) else [prompts]):
        choice: dict[str, Any] = {"index": index, "text": "", "finish_reason": "length"}
        if body.get("logprobs") is not None:
            choice["logprobs"] = {"token_logprobs": [value] * body["max_tokens"]}
        if body.get("prompt_logprobs") is not None:
            choice["prompt_logprobs"] = [
                None,
                *(_entry(prompt, place, value, is_teacher) for place in range(1, len(prompt))),
            ]
        yield choice


def _entry(prompt: list[int], place: int, value: float, is_teacher: bool) -> dict[str, Any]:
    """What vLLM says of a prompt's token with ``prompt_logprobs: 0``: the token alone, none likelier."""
    token = prompt[place]
    value = teacher_logprob(prompt[:place], token) if is_teacher else value
    return {str(token): {"logprob": value, "rank": 1, "decoded_token": f"{token} "}}


def _chunk(chat: bool, token: int, over: str | None, value: float, prompt: list[int] | None) -> dict[str, Any]:
    fields: dict[str, Any] = {"index": 0, "token_ids": [token], "finish_reason": over}
    if chat:
        fields |= {"delta": {"content": f"{token} "}, "logprobs": {"content": [{"token": "", "logprob": value}]}}
    else:
        fields |= {"text": f"{token} ", "prompt_token_ids": prompt, "logprobs": {"token_logprobs": [value]}}
    whole: dict[str, Any] = {"id": "c", "model": "policy", "created": 1, "choices": [fields]}
    return {**whole, "prompt_token_ids": prompt} if chat else whole


async def _say(response: web.StreamResponse, event: dict[str, Any]) -> None:
    await response.write(f"data: {json.dumps(event)}\n\n".encode())


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path)
    parser.add_argument("--uds")
    parser.add_argument("--max-model-len", type=int, default=256)
    parser.add_argument("--token-seconds", type=float, default=0.01)
    parser.add_argument("--load-seconds", type=float, default=0.0)
    parser.add_argument("--teacher-seconds", type=float)
    parser.add_argument("--receives", action="store_true")
    parser.add_argument("--dies-amid", action="store_true")
    fields, _ = parser.parse_known_args()
    engine = Engine(fields.model, fields.max_model_len, fields.token_seconds, fields.load_seconds)
    engine.dies_amid = fields.dies_amid
    engine.teacher_seconds = fields.teacher_seconds
    if fields.receives:
        engine.receives()
    app = web.Application()
    app.router.add_post("/init_weight_transfer_engine", engine.meet)
    app.router.add_post("/start_weight_update", engine.nothing)
    app.router.add_get("/get_world_size", engine.workers)
    app.router.add_get("/health", engine.nothing)
    app.router.add_get("/v1/models", engine.models)
    app.router.add_post("/pause", engine.pause)
    app.router.add_post("/resume", engine.resume)
    app.router.add_post("/update_weights", engine.load)
    app.router.add_post("/finish_weight_update", engine.finish)
    app.router.add_post("/v1/load_lora_adapter", engine.add)
    app.router.add_post("/v1/unload_lora_adapter", engine.remove)
    app.router.add_post("/tokenize", engine.tokenize)
    app.router.add_post("/v1/chat/completions", engine.answer)
    app.router.add_post("/v1/completions", engine.answer)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    await web.UnixSite(runner, fields.uds, backlog=1024).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
