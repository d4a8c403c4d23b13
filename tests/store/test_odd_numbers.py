"""NaN and infinities of OTLP keep their value on the way from an exporter to SQL, page, command line and Python."""

import asyncio
import json
import math
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from lightningbus.analysis.transcript import Transcript
from lightningbus.bus.client import Bus
from lightningbus.store.clickhouse.client import connect_readonly
from lightningbus.store.clickhouse.query_limits import UI
from lightningbus.store.ui.client import Reader
from lightningbus.store.ui.server import UiServer, serve
from tests.runners.test_telemetry import Bed, bed
from tests.seed_store import insert
from tests.store.conftest import StoreProcess, prepared

NUMBERS = {"nan": math.nan, "more": math.inf, "less": -math.inf}
WORDS = {"nan": "NaN", "more": "Infinity", "less": "-Infinity", "both": '["NaN",1.5]'}
SQL = """
SELECT name, arrayMap(name -> toFloat64(attributes[name]), ['nan', 'more', 'less']) AS numbers, attributes, resource,
    events
FROM spans WHERE name IN ('protobuf', 'json') ORDER BY name
"""


@pytest.fixture
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreProcess]:
    with prepared(tmp_path_factory.mktemp("store")) as built:
        yield built


def export(built: Bed) -> None:
    """Send a span by OpenTelemetry's own exporter."""
    headers = {"Authorization": f"Bearer {built.slot.key}"}
    provider = TracerProvider(resource=Resource(NUMBERS))
    url = f"{built.slot.base_url}/otlp/v1/traces"
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(url, headers=headers)))
    with provider.get_tracer("test").start_as_current_span("protobuf", attributes=NUMBERS) as span:
        span.set_attribute("both", [math.nan, 1.5])
        span.add_event("noted", NUMBERS)
    provider.shutdown()


def json_request() -> bytes:
    """Build the same span in OTLP's JSON, where these numbers are words."""
    numbers = [{"key": key, "value": {"doubleValue": WORDS[key]}} for key in NUMBERS]
    both = {"arrayValue": {"values": [{"doubleValue": "NaN"}, {"doubleValue": 1.5}]}}
    span = {
        "traceId": "01" * 16, "spanId": "02" * 8, "name": "json", "startTimeUnixNano": "5", "endTimeUnixNano": "9",
        "attributes": [*numbers, {"key": "both", "value": both}], "events": [{"name": "noted", "attributes": numbers}],
    }  # fmt: skip
    group = {"resource": {"attributes": numbers}, "scopeSpans": [{"spans": [span]}]}
    return json.dumps({"resourceSpans": [group]}).encode()


async def test_numbers_that_json_lacks_are_the_same_wherever_they_are_read(
    bus: Bus, store: StoreProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    async with bed(bus) as built:
        await asyncio.to_thread(export, built)
        status, _, _ = await built.post("traces", json_request(), "application/json")
        assert status == 200
        attempt = built.attempt
        attempt.finish("ok", 1.0, "", "")
        insert(store.sql, [*built.sent, *attempt.outbox])
    for name, numbers, attributes, resource, events in store.sql.query(SQL).result_rows:
        assert [str(number) for number in numbers] == ["nan", "inf", "-inf"], name
        assert {key: attributes[key] for key in WORDS} == WORDS
        assert {key: resource[key] for key in NUMBERS} == {key: WORDS[key] for key in NUMBERS}
        assert {key: WORDS[key] for key in NUMBERS}.items() <= json.loads(events)[0]["attributes"].items()
    page = await read_page(store, attempt.rollout)
    transcript = Transcript.load(store.sql, attempt.rollout, "")
    transcript.show_json()
    printed = json.loads(capsys.readouterr().out)
    for spans in (page["spans"], printed["spans"], transcript.spans):
        attributes = {span["name"]: span["attributes"] for span in spans}
        for name in ("protobuf", "json"):
            assert {key: attributes[name][key] for key in WORDS} == WORDS


async def read_page(store: StoreProcess, rollout: str) -> Any:
    """Ask the page's server for a rollout."""
    reader = Reader(await asyncio.to_thread(connect_readonly, store.url, limits=UI))
    async with (
        serve(UiServer(reader, "127.0.0.1", list), "127.0.0.1", 0) as site,
        aiohttp.ClientSession(site) as session,
        session.get("/api/rollout", params={"run_id": "run", "rollout_id": rollout}) as response,
    ):
        assert response.status == 200, await response.text()
        return json.loads(await response.text())
