"""Whatever span a gateway takes, the store stores: with its id, its name and its time."""

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lightningbus.runners.recording import otlp
from lightningbus.runners.recording.agent_events import EventContext, convert_event, parse_event
from lightningbus.runners.recording.attempt import AttemptRecorder
from lightningbus.runners.recording.refusals import Refusals
from lightningbus.schemas.base import MAX_TIME_NS
from lightningbus.schemas.codec import decode, encode
from lightningbus.schemas.spans import Span, SpanBatch
from lightningbus.store.ingest.arrow import rows_to_arrow
from lightningbus.store.ingest.batch import load_column_types
from lightningbus.store.ingest.rows.events import build_rows
from lightningbus.store.ingest.rows.row import EventMetadata
from tests.runners.conftest import task
from tests.store.conftest import StoreProcess, prepared


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreProcess]:
    with prepared(tmp_path_factory.mktemp("store")) as built:
        yield built


def attributes(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(st.fixed_dictionaries({"key": TEXTS, "value": values}), max_size=3)


TEXTS = st.text(st.characters(exclude_categories=()), max_size=8)
"""With halves of characters and control characters."""
NUMBERS = st.integers(-(2**70), 2**70) | st.sampled_from([2**63 - 1, 2**63, 2**64 - 1, -(2**63)]) | st.floats()
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)
VALUES = st.recursive(
    st.one_of(
        st.fixed_dictionaries({"stringValue": TEXTS}),
        st.fixed_dictionaries({"intValue": NUMBERS}),
        st.fixed_dictionaries({"doubleValue": NUMBERS}),
        st.fixed_dictionaries({"boolValue": st.booleans()}),
        st.fixed_dictionaries({"bytesValue": st.sampled_from(["", "AAEC", "/w=="])}),
        st.just({}),
        JSON,
    ),
    lambda inner: (
        st.fixed_dictionaries({"arrayValue": st.fixed_dictionaries({"values": st.lists(inner, max_size=2)})})
        | st.fixed_dictionaries({"kvlistValue": st.fixed_dictionaries({"values": attributes(inner)})})
    ),
    max_leaves=4,
)


TIMES = st.integers(0, 2**64 - 1) | st.sampled_from([0, 1, MAX_TIME_NS, MAX_TIME_NS + 1]) | JSON
SPANS = st.fixed_dictionaries(
    {"spanId": st.integers(0, 99).map("{:016x}".format)},
    optional={
        "name": TEXTS | JSON,
        "traceId": st.just("0a" * 16) | TEXTS,
        "parentSpanId": st.none() | st.just("0b" * 8) | TEXTS,
        "kind": st.integers(-1, 9) | TEXTS,
        "startTimeUnixNano": TIMES,
        "endTimeUnixNano": TIMES.map(str),
        "attributes": attributes(VALUES) | JSON,
        "events": st.lists(
            st.fixed_dictionaries({"timeUnixNano": TIMES, "attributes": attributes(VALUES)}), max_size=2
        ),
        "links": st.lists(st.fixed_dictionaries({"spanId": st.just("0c" * 8), "traceState": TEXTS}), max_size=2),
        "status": st.fixed_dictionaries({"code": st.integers(0, 3), "message": TEXTS}) | JSON,
        "traceState": TEXTS,
        "new": JSON,
    },
)
EVENTS = st.fixed_dictionaries(
    {"name": TEXTS},
    optional={"kind": st.sampled_from(["tool", "chain"]), "input": JSON, "output": JSON, "seconds": NUMBERS},
) | st.fixed_dictionaries({"event_type": TEXTS, "data": st.dictionaries(TEXTS, JSON, max_size=2)})


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(spans=st.lists(SPANS, max_size=4), resource=JSON | attributes(VALUES), events=st.lists(EVENTS, max_size=2))
def test_any_span_that_the_gateway_takes_is_stored(
    store: StoreProcess, spans: list[Any], resource: Any, events: list[Any]
) -> None:
    recorder = AttemptRecorder(task(), 1, "runner")
    body = {"resourceSpans": [{"resource": {"attributes": resource}, "scopeSpans": [{"spans": spans}]}]}
    body["resourceSpans"].append({"scopeSpans": [{"spans": [{"spanId": "ff" * 8, "name": "good"}]}]})
    refusals = Refusals()
    read = otlp.parse_request(
        "traces", json.dumps(body).encode(), otlp.JSON, recorder.rollout, recorder.root_id, refusals
    )
    assert read[-1].name == "good" and len(read) + refusals.total == len(spans) + 1
    for event in events:
        try:
            read.append(convert_event(parse_event(json.dumps(event).encode()), EventContext.of(recorder, 10**18)))
        except ValueError:
            continue
        recorder.add(read[-1])
    expected: dict[str, Span] = {}
    for span in reversed(read):
        if recorder.add(span) is None:
            expected.setdefault(span.span_id, span)  # of two with one id the first one counts
    recorder.finish("ok", 1.0, "", "")
    rows = [
        row
        for batch in recorder.outbox
        for table, row in build_rows(decode(SpanBatch, encode(batch)), EventMetadata(1, 10**18, lambda run: 0))
        if table == "raw_spans"
    ]
    columns = rows_to_arrow(rows, load_column_types(store.sql, "lightningbus")["raw_spans"])
    assert store.sql.insert_arrow("raw_spans", columns).written_rows == len(expected) + 1
    stored = store.sql.query(
        "SELECT span_id, name, toUnixTimestamp64Nano(started_at), toUnixTimestamp64Nano(ended_at) FROM raw_spans "
        "WHERE execution_id = {execution_id:String} AND span_id != {root:String}",
        parameters={"execution_id": recorder.execution, "root": recorder.root_id},
    ).result_rows
    assert {row[0]: row[2:] for row in stored} == {id: (span.start_ns, span.end_ns) for id, span in expected.items()}


def test_times_of_the_gateway_are_those_of_the_tables(store: StoreProcess) -> None:
    """The bound is the tables': 64 bits with a sign."""
    kinds = {kind for columns in load_column_types(store.sql, "lightningbus").values() for kind in columns.values()}
    assert {kind for kind in kinds if kind.startswith("DateTime")} == {"DateTime64(9, 'UTC')"}
    assert math.log2(MAX_TIME_NS + 1) == 63
    sql = f"SELECT toUnixTimestamp64Nano(fromUnixTimestamp64Nano(toInt64({MAX_TIME_NS})))"
    assert store.fetch_value(sql) == MAX_TIME_NS
