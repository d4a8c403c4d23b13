"""What hostile telemetry costs: work that grows with the bytes sent, never faster, and none of it on the event loop."""

import asyncio
import json
import sys
import threading
from types import FrameType
from typing import Any

import aiohttp
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from lightningbus.bus.client import Bus
from lightningbus.bus.security.secrets import bearer_header
from lightningbus.runners.recording import otlp
from lightningbus.runners.recording.otlp_limits import MAX_BYTES, MAX_SPANS, MAX_VALUES, InvalidOtlpError
from tests.fuzz import corpora
from tests.polling import HANG_SECONDS
from tests.runners.test_telemetry import PROTOBUF, bed, traces


def calls_of(signal: str, body: bytes, kind: str = PROTOBUF) -> int:
    """How many Python functions reading a request calls, refused or not."""
    counted = 0

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal counted
        counted += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        otlp.parse_request(signal, body, kind, "t.0", "root")
    except InvalidOtlpError:
        pass
    finally:
        sys.setprofile(before)
    return counted


def test_resource_attributes_are_converted_once_however_many_scopes_are_below_them() -> None:
    once = calls_of("traces", corpora.crowded(200))
    assert calls_of("traces", corpora.crowded(400)) < 3 * once
    assert calls_of("traces", corpora.crowded(400, "json"), otlp.JSON) < 3 * calls_of(
        "traces", corpora.crowded(200, "json"), otlp.JSON
    )


@pytest.mark.parametrize("kind", [PROTOBUF, otlp.JSON])
def test_spans_are_counted_before_any_is_converted(kind: str) -> None:
    count = MAX_SPANS + 1
    if kind == PROTOBUF:
        request = ExportTraceServiceRequest()
        spans = request.resource_spans.add().scope_spans.add().spans
        for _ in range(count):
            spans.add()
        body = request.SerializeToString()
    else:
        body = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [{}] * count}]}]}).encode()
    with pytest.raises(InvalidOtlpError, match=f"{count} spans in one request; the limit is {MAX_SPANS}"):
        otlp.parse_request("traces", body, kind, "t.0", "root")
    assert kind != PROTOBUF or calls_of("traces", body, kind) < 100


@pytest.mark.parametrize(
    "body", corpora.empty_objects(MAX_VALUES + 1), ids=["groups", "events", "values", "unknown fields", "protobuf"]
)
def test_a_body_of_empty_objects_is_refused(body: bytes) -> None:
    assert len(body) < MAX_BYTES
    with pytest.raises(InvalidOtlpError, match=f"more than {MAX_VALUES} values in one request"):
        otlp.parse_request("traces", body, otlp.JSON if body[:1] == b"{" else PROTOBUF, "t.0", "root")


def test_what_is_kept_of_unknown_fields_grows_with_their_bytes() -> None:
    """A span inside an unknown field of a span is written as JSON once, however deep it is."""
    for levels in (2, 20):
        body = corpora.nested(levels)
        (span,) = otlp.parse_request("traces", body, otlp.JSON, "t.0", "root")
        kept = span.attributes["lightningbus.otlp.unknown.new"]
        assert (
            len(kept) < len(body)
            and json.loads(kept)
            == json.loads(corpora.nested(levels - 1))["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
        )


def test_what_spans_share_is_not_multiplied_without_end() -> None:
    request = ExportTraceServiceRequest()
    group = request.resource_spans.add()
    group.resource.attributes.add(key="large").value.string_value = "x" * 100_000
    scope = group.scope_spans.add()
    for number in range(1000):
        scope.spans.add(span_id=(number + 1).to_bytes(8, "big"))
    with pytest.raises(InvalidOtlpError, match=r"resource and scope, .* the limit is"):
        otlp.parse_request("traces", request.SerializeToString(), PROTOBUF, "t.0", "root")


async def test_a_request_of_telemetry_may_have_a_few_mib(bus: Bus) -> None:
    async with bed(bus) as built:
        status, _, body = await built.post("traces", bytes(MAX_BYTES + 1), otlp.JSON)
        assert status == 413 and f"may have {MAX_BYTES} bytes" in json.loads(body)["message"]


async def test_others_are_answered_while_much_telemetry_is_decoded(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, replies, read = threading.Event(), threading.Event(), otlp.parse_request

    def slow(*arguments: Any) -> Any:
        begun.set()
        assert replies.wait(HANG_SECONDS), "nobody else was answered meanwhile"
        return read(*arguments)

    monkeypatch.setattr(otlp, "parse_request", slow)
    async with bed(bus) as built, aiohttp.ClientSession() as http, asyncio.timeout(HANG_SECONDS):
        sending = asyncio.create_task(built.post("traces", traces(300).SerializeToString()))
        await asyncio.to_thread(begun.wait, HANG_SECONDS)
        async with http.get(f"{built.slot.base_url}/v1/models", headers=bearer_header(built.slot.key)) as other:
            assert other.status == 200
        replies.set()
        assert (await sending)[0] == 200
