"""Both gateways against their OpenAPI documents: only what these say is answered, and nothing brings one down."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer

from lightningbus.bus.client import Bus
from lightningbus.inference.engine.vllm_client import VllmClient
from lightningbus.inference.gateway.served_model import ServedModel
from lightningbus.inference.gateway.server import Gateway as NodeGateway
from lightningbus.runners.gateway.server import Gateway
from lightningbus.runners.recording.attempt import AttemptRecorder
from tests.polling import HANG_SECONDS
from tests.runners.conftest import ScriptedEngine, task

OPENAPI = Path(__file__).parents[2] / "docs" / "openapi"
EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "5"))
"""Of each operation; `make fuzz` asks for more."""
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
KEY = "k" * 32


class StrictEngine(ScriptedEngine):
    """Refuses what vLLM would: a prompt that is none."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        try:
            body = await request.json()
            prompt = body.get("messages" if request.path.endswith("/chat/completions") else "prompt")
            if not isinstance(prompt, str) and (not prompt or not isinstance(prompt, list)):
                raise ValueError("no prompt")
            if prompt and not request.path.endswith("/chat/completions") and not isinstance(prompt[0], int | str):
                raise ValueError("no prompt")
        except (ValueError, AttributeError, RecursionError) as error:
            return web.json_response({"error": {"message": str(error), "type": "BadRequestError"}}, status=400)
        return await super().answer(request)


@asynccontextmanager
async def runners_gateway(bus: Bus) -> AsyncIterator[tuple[str, str, web.Application]]:
    """Address, key and application of a runner's gateway with a rollout in its slot, and a node behind it."""

    async def send(attempt: AttemptRecorder, seconds: float) -> None:
        attempt.outbox.clear()

    async with StrictEngine().serving(bus), bus.fleet("inference") as fleet, Gateway(fleet, send, 1) as gateway:
        async with asyncio.timeout(HANG_SECONDS):
            while not fleet.members():
                await fleet.wait_for_change()
        (slot,) = gateway.slots
        slot.environment()
        slot.begin(AttemptRecorder(task(), 1, "runner"), task(), asyncio.get_running_loop().time() + 3600)
        yield slot.base_url, slot.key, gateway._app


@asynccontextmanager
async def nodes_gateway(bus: Bus) -> AsyncIterator[tuple[str, str, web.Application]]:
    """The same of a node's, with all of vLLM's routes behind it."""
    engine = StrictEngine()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", engine.answer)
    app.router.add_post("/v1/completions", engine.answer)
    app.router.add_post("/v1/chat/completions/parse", _no_parser)
    app.router.add_post("/tokenize", _tokens)
    app.router.add_get("/v1/models", _models)
    app.router.add_get("/metrics", _metrics)
    model = ServedModel("policy")
    async with (
        TestServer(app) as server,
        aiohttp.ClientSession() as http,
        NodeGateway(
            VllmClient(http, str(server.make_url("")).rstrip("/")).forward, "127.0.0.1", 0, [model], KEY
        ) as gateway,
    ):
        model.state, model.version = "ready", 3
        yield gateway.address, KEY, gateway._app


async def _no_parser(request: web.Request) -> web.Response:
    """Answer as vLLM does without a parser."""
    return web.json_response({"detail": "Not Found"}, status=404)


async def _tokens(request: web.Request) -> web.Response:
    return web.json_response({"tokens": [1, 2]})


async def _models(request: web.Request) -> web.Response:
    return web.json_response({"object": "list", "data": []})


async def _metrics(request: web.Request) -> web.Response:
    return web.Response(text="vllm:requests 1\n")


GATEWAYS: dict[str, Any] = {"runner": runners_gateway, "node": nodes_gateway}


@pytest.mark.parametrize("name", GATEWAYS)
async def test_its_routes_are_those_of_its_document(bus: Bus, name: str) -> None:
    document = yaml.safe_load((OPENAPI / f"{name}.yaml").read_text())
    documented = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    async with GATEWAYS[name](bus) as (_, _, app):
        # An address that is refused with a sentence, whatever the method, is not a route of the document.
        routes = [route for route in app.router.routes() if route.method not in ("HEAD", "*")]
        served = {(route.method, route.resource.canonical) for route in routes}
    assert {(method, path.removeprefix("/slot/{k}")) for method, path in served} == documented


@pytest.mark.e2e
@pytest.mark.parametrize("name", GATEWAYS)
async def test_whatever_is_asked_it_answers_as_documented(bus: Bus, name: str, tmp_path: Path) -> None:
    async with GATEWAYS[name](bus) as (address, key, _):
        process = await asyncio.create_subprocess_exec(
            str(Path(sys.executable).with_name("schemathesis")), "run", str(OPENAPI / f"{name}.yaml"), "--url", address,
            "--header", f"Authorization: Bearer {key}", "--checks", CHECKS, "--max-examples", str(EXAMPLES),
            "--phases", "coverage,fuzzing", "--seed", "1", "--request-timeout", "20", "--no-color",
            cwd=tmp_path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        out, _ = await process.communicate()
        assert process.returncode == 0, out.decode()
        async with aiohttp.ClientSession() as http, http.get(f"{address}/health") as answer:
            assert answer.status in (200, 404), "it lives"
