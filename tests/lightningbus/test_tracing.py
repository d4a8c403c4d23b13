"""A role's own traces: nothing without an endpoint, nothing in the way without a collector, and whose they are.

That all roles export theirs is in ``tests/e2e``, where all of them are at work.
"""

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from lightningbus.common.observability import tracing
from lightningbus.common.observability.tracing import without_otel_exporter_env
from tests.otlp import Collector, collecting
from tests.polling import HANG_SECONDS

WORK = """
import logging, sys, time
logging.basicConfig(level=logging.INFO, format="%(message)s")
from lightningbus.common.observability import tracing
tracing.setup("runner", "r-1")
started = time.monotonic()
for number in range(3):
    with tracing.start_as_current_span("attempt", {"lightningbus.run": "x"}) as span:
        with tracing.start_as_current_span("publish"):
            traceparent = tracing.format_traceparent(span)
    time.sleep(0.3)
tracing.shutdown()
print(f"{time.monotonic() - started} {'opentelemetry.sdk' in sys.modules} {traceparent}")
"""


PATIENT = f"from lightningbus.common.observability import tracing; tracing.FLUSH_SECONDS = {HANG_SECONDS}\n"
"""A prelude of a process whose last spans are all exported, however busy the machine is."""


def work(prelude: str = "", **environment: str) -> "subprocess.CompletedProcess[str]":
    """A process that makes spans, with this environment and nothing else of OpenTelemetry's."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")} | environment
    return subprocess.run(
        [sys.executable, "-c", prelude + WORK],
        env=env,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=True,
    )


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_SDK_DISABLED": "true"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_TRACES_EXPORTER": "none"},
    ],
    ids=["no endpoint", "disabled", "no exporter"],
)
def test_without_an_endpoint_nothing_is_exported_or_imported(environment: dict[str, str]) -> None:
    done = work(**environment)
    assert done.stdout.split()[1:] == ["False"] and done.stderr == ""


@pytest.fixture
def silent() -> Iterator[str]:
    """Address of a collector that never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.integration
def test_a_collector_that_never_answers_is_told_of_once(silent: str) -> None:
    timing = {"OTEL_BSP_SCHEDULE_DELAY": "100", "OTEL_EXPORTER_OTLP_TIMEOUT": "0.2"}
    done = work(OTEL_EXPORTER_OTLP_ENDPOINT=silent, OTEL_EXPORTER_OTLP_HEADERS="x-key=hunter2", **timing)
    assert done.stdout.strip().endswith(("-01", "-03"))
    assert done.stderr.count("no collector takes traces") == 1 and len(done.stderr.splitlines()) == 1, done.stderr


@pytest.mark.integration
def test_a_collector_that_never_answers_is_waited_for_by_nobody(silent: str) -> None:
    """Neither by spans nor at the end, though the exporter would wait much longer."""
    timing = {"OTEL_BSP_SCHEDULE_DELAY": "100", "OTEL_EXPORTER_OTLP_TIMEOUT": str(HANG_SECONDS)}
    done = work(OTEL_EXPORTER_OTLP_ENDPOINT=silent, **timing)
    assert float(done.stdout.split()[0]) < HANG_SECONDS / 2


@pytest.mark.parametrize(
    ("prelude", "environment", "text"),
    [
        ("import sys; sys.modules['opentelemetry.sdk'] = None\n", {}, "pip install 'lightningbus[otel]'"),
        ("", {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf"),
    ],
    ids=["not installed", "another protocol"],
)
def test_what_is_amiss_is_one_sentence_and_work_goes_on(prelude: str, environment: dict[str, str], text: str) -> None:
    done = work(prelude, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9", **environment)
    assert text in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr


@pytest.mark.integration
def test_names_sampling_and_headers_are_the_environments() -> None:
    with collecting() as collector:
        address = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{collector.url}/mine"}
        work(PATIENT, **address, OTEL_RESOURCE_ATTRIBUTES="deployment.environment.name=test")
        assert collector.paths == {"/mine"} and len(collector.spans) == 6
        assert {(span.service, span.instance) for span in collector.spans} == {("lightningbus-runner", "r-1")}
        work(PATIENT, **address, OTEL_SERVICE_NAME="own")
        assert len(collector.of("own")) == 6
        work(**address, OTEL_SERVICE_NAME="none", OTEL_TRACES_SAMPLER="always_off")
        assert not collector.of("none")


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> "object":
    """Spans of this process."""
    monkeypatch.setattr(tracing, "FLUSH_SECONDS", HANG_SECONDS)
    with collecting() as built:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", built.url)
        tracing.setup("store", "s")
        yield built
        tracing.shutdown()


async def test_spans_are_below_what_made_them_also_at_once_and_failures_say_their_kind(collector: Collector) -> None:
    remote = f"00-{'ab' * 16}-{'cd' * 8}-01"

    async def record_spans(number: int) -> None:
        with tracing.start_as_current_span(
            "outer", {"lightningbus.n": number}, remote if number == 0 else "", "consumer"
        ):
            await asyncio.sleep(0.01)
            with pytest.raises(ValueError), tracing.start_as_current_span("inner"):
                raise ValueError("a secret")
            tracing.record_span("earlier", time.time_ns() - 5_000_000_000, time.time_ns())

    await asyncio.gather(*(record_spans(number) for number in range(3)))
    tracing.shutdown()
    outer = {span.span_id: span for span in collector.of("lightningbus-store", "outer")}
    inner, earlier = collector.of("lightningbus-store", "inner"), collector.of("lightningbus-store", "earlier")
    assert len(outer) == len(inner) == len(earlier) == 3
    assert {span.parent for span in inner} == {span.parent for span in earlier} == set(outer)
    assert all(span.trace_id == outer[span.parent].trace_id for span in inner)
    joined = next(span for span in outer.values() if span.attributes["lightningbus.n"] == 0)
    assert (joined.trace_id, joined.parent) == ("ab" * 16, "cd" * 8)
    assert all(span.status == 2 for span in inner) and all(span.seconds > 4 for span in earlier)
    assert b"ValueError" in collector.raw and b"secret" not in collector.raw


def test_others_are_not_told_where_our_traces_go() -> None:
    ours = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector", "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "key=1",
        "OTEL_SERVICE_NAME": "ours", "OTEL_TRACES_SAMPLER": "always_off", "OTEL_SDK_DISABLED": "true",
    }  # fmt: skip
    theirs = {"PATH": "/bin", "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "true"}
    assert without_otel_exporter_env(ours | theirs) == theirs
