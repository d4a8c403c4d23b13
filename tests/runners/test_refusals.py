"""What the runner's gateway refuses, it refuses with a status and a sentence; a refused request costs little."""

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from lightningbus.bus.client import Bus
from lightningbus.bus.security.secrets import bearer_header
from lightningbus.inference.engine.vllm_client import VllmClient
from lightningbus.inference.gateway.served_model import ServedModel
from lightningbus.inference.gateway.server import Gateway as NodeGateway
from lightningbus.tasks.task_publisher import TaskPublisher
from tests.polling import HANG_SECONDS
from tests.runners.conftest import ScriptedEngine, ended, running, task
from tests.runners.test_admission import nothing, post, serving
from tests.runners.test_telemetry import PROTOBUF

ASKS = """
from openai import APIStatusError, OpenAI

def solve(task):
    try:
        OpenAI(max_retries=0).chat.completions.create(model="policy", messages=[{"role": "user", "content": "x"}])
    except APIStatusError as error:
        return {"reward": 0.0, "status": error.status_code, "message": error.message}
"""


@pytest.mark.parametrize("path", ["v1/chat/completions", "v1/responses", "v1/messages", "otlp/v1/traces"])
@pytest.mark.parametrize("encoding", ["gzip", "deflate", "zstd"])
async def test_a_body_that_is_not_packed_as_it_says_is_400(
    bus: Bus, path: str, encoding: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(bus, nothing) as (slot, _), aiohttp.ClientSession() as http:
        kind = "application/json" if path.startswith("v1") else PROTOBUF
        for _ in range(2):  # the second on a connection of its own
            packed = {"Content-Encoding": encoding, "Content-Type": kind}
            status, _, body = await post(http, slot, path, b"\x00 not packed", **packed)
            assert status == 400 and f"the body is not {encoding}".encode() in body
        async with http.get(f"{slot.base_url}/v1/models", headers=bearer_header(slot.key)) as answer:
            assert answer.status == 200
    assert "Traceback" not in caplog.text and not [record for record in caplog.records if record.exc_info]


async def test_a_body_that_is_not_packed_as_it_says_is_400_at_a_node_too() -> None:
    key, model = "k" * 16, ServedModel("policy")
    async with (
        aiohttp.ClientSession() as http,
        NodeGateway(VllmClient(http, "http://127.0.0.1:1").forward, "127.0.0.1", 0, [model], key) as node,
    ):
        model.state, model.version = "ready", 1
        headers = {**bearer_header(key), "Content-Encoding": "gzip"}
        async with http.post(f"{node.address}/v1/completions", data=b"not packed", headers=headers) as answer:
            assert answer.status == 400
            assert (await answer.json())["error"]["message"] == "the body is not gzip, as its Content-Encoding says"


async def test_a_signal_that_otlp_does_not_have_is_404(bus: Bus) -> None:
    async with serving(bus, nothing) as (slot, _), aiohttp.ClientSession() as http:
        status, _, body = await post(http, slot, "otlp/v1/nothing", b"{}", **{"Content-Type": "application/json"})
        assert (status, json.loads(body)["message"]) == (404, "OTLP has no signal 'nothing'")
        async with http.post(
            f"{slot.base_url}/otlp/v1/nothing", data=b"{}", headers=bearer_header("another")
        ) as answer:
            assert answer.status == 401, "the key comes first"


@pytest.mark.parametrize("sampling", [{"temperature": b"\xff"}, {"logit_bias": {"1": [b""]}}, {"top_p": float("nan")}])
async def test_sampling_that_is_no_json_is_an_error_that_names_it(
    bus: Bus, engine: ScriptedEngine, tmp_path: Any, sampling: dict[str, Any]
) -> None:
    (tmp_path / "asks.py").write_text(ASKS)
    (name,) = sampling
    async with running(bus, entrypoint="asks:solve", working_dir=tmp_path):
        await TaskPublisher(bus).publish_task(task(sampling_params=sampling, max_attempts=1))
        (batch,) = await ended(bus)
    assert batch.end is not None and batch.end.outcome == "ok", batch.end
    answer = json.loads(batch.end.result)
    assert answer["status"] == 400
    assert f"sampling of the task: '{name}' cannot be sent to an engine" in answer["message"]
    assert not engine.requests


@pytest.mark.parametrize("path", ["/slot/0/v1/chat/completions", "/slot/0/otlp/v1/traces", "/slot/9/v1/messages"])
async def test_the_key_is_checked_before_the_body_is_read(bus: Bus, path: str) -> None:
    async with serving(bus, nothing) as (slot, _):
        host, _, port = slot.base_url.removeprefix("http://").partition("/")[0].rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer another\r\nContent-Length: 1000000\r\n\r\n"
        writer.write(head.encode())  # and not a byte of the body
        async with asyncio.timeout(HANG_SECONDS):
            assert (await reader.readline()).startswith(b"HTTP/1.1 401 ")
        writer.close()
        assert not slot.admission.requests
