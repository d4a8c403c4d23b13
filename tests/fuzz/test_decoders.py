"""Every decoder, fed with a thousand wrong inputs, and with what once brought it down; ``make fuzz``: a million."""

import json
from typing import Any

import lz4.frame
import pytest
from msgspec.structs import replace

from lightningbus.schemas.codec import encode
from lightningbus.schemas.semconv import attributes
from lightningbus.schemas.spans import VersionSpan
from tests.fuzz import corpora
from tests.fuzz.engine import Target, feed, fuzz
from tests.fuzz.targets import all_targets

TARGETS = {target.name: target for target in all_targets()}
INPUTS = 1000
SEED = 1


def spans_with(**fields: Any) -> bytes:
    """A batch of one span."""
    return encode(replace(corpora.BATCH, spans=(replace(corpora.BATCH.spans[0], **fields),)))


FOUND: list[tuple[str, bytes]] = [
    (
        "rollout of SpanBatches",
        spans_with(call=None, events=({"name": attributes.EVALUATION_EVENT, "attributes": "x"},)),
    ),
    (
        "event SpanBatch/2",
        spans_with(call=replace(corpora.CALLS[0], weight_versions=(VersionSpan(version=2**32, start=0, end=1),))),
    ),
    ("OTLP traces in JSON", b'{"resourceSpans": [{"\\ud800": 1}]}'),
    ("OTLP traces in JSON", b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"kind": Infinity}]}]}]}'),
    ("OTLP traces", corpora.crowded(4000)),
    ("OTLP traces", corpora.crowded(100_000)),
    ("OTLP traces in JSON", corpora.crowded(4000, "json")),
    ("OTLP traces in JSON", corpora.nested(26)),
    *(("OTLP traces in JSON", body) for body in corpora.empty_objects(1_000_000)[:-1]),
    ("OTLP traces", corpora.empty_objects(1_000_000)[-1]),
    ("request completions", b'{"model": "policy", "prompt": "x", "max_tokens": "many"}'),
    ("request chat/completions", b'{"model": "policy", "messages": [], "max_completion_tokens": [1]}'),
    *(
        ("chunks to chat/completions", json.dumps([chunk]).encode())
        for chunk in (1, {"choices": [1]}, {"choices": [{}]}, {"choices": [{"index": 0, "delta": 1}]}, {"error": [1]})
    ),
    ("answer of an agent", b'{"value": 1' + b"0" * 400 + b"}"),
    ("answer of an agent", b'{"job": 0}'),
    ("answer of an agent", b"[" * 100_000),
    ("run file", b"name: \xff"),
    ("run file", b"name: 2001-13-45"),
    ("endpoints of a run", b'{"pid": "x", "bus": "y"}'),
    ("endpoints of a run", b'{"pid": 99999999999999999999, "bus": "y"}'),
    ("credentials file", b'{"inbox": "x", "ca": "\\u0000"}'),
    ("credentials file", b'{"inbox": 5}'),
    ("statement over HTTP", b"lz4\n\n" + lz4.frame.compress(bytes(300 << 20))),
]


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_wrong_input_is_answered_by_the_documented_errors_alone(target: Target) -> None:
    outcome = fuzz(target, int(INPUTS * target.weight), SEED)
    assert outcome.inputs >= INPUTS * target.weight - 1
    assert not outcome.faults, [(fault.why, fault.data[:500]) for fault in outcome.faults]


@pytest.mark.parametrize(("name", "data"), FOUND, ids=[f"{number}-{name}" for number, (name, _) in enumerate(FOUND)])
def test_what_once_brought_a_decoder_down_no_longer_does(name: str, data: bytes) -> None:
    faults = feed(TARGETS[name], data)
    assert not faults, [fault.why for fault in faults]
