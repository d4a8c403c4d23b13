"""The wire format, compared with bytes that any MessagePack library reads."""

import struct

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightningbus.schemas.codec import (
    MAX_BYTES,
    VERSION,
    DecodeError,
    EncodeError,
    decode,
    decode_as,
    encode,
    schema_of,
)
from lightningbus.schemas.spans import ModelCall, Span, SpanBatch, VersionSpan
from lightningbus.schemas.tasks import Task

TASK = Task(id="q1", run_id="r", agent="calc", input={"question": "1+1"}, sample_index=2, group_size=8)
TASK_BYTES = bytes.fromhex(
    "de0006a26964a27131a672756e5f6964a172a56167656e74a463616c63ac73616d706c655f696e64657802aa67726f75705f"
    "73697a6508a5696e70757481a87175657374696f6ea3312b31"
)
CALL = ModelCall(
    index=0,
    model="policy",
    node="n1",
    prompt_ids=struct.pack("<3I", 1, 2, 3),
    response_ids=struct.pack("<2I", 4, 5),
    logprobs=struct.pack("<2f", -0.5, -0.25),
    weight_versions=(VersionSpan(version=7, start=0, end=1), VersionSpan(version=8, start=1, end=2)),
)


def test_an_event_is_a_plain_msgpack_map_keyed_by_field_name() -> None:
    """Any language reads an event with nothing but a MessagePack library."""
    raw = msgpack.unpackb(encode(TASK))
    assert raw["id"] == "q1"
    assert raw["input"] == {"question": "1+1"}
    assert encode(TASK) == TASK_BYTES


def test_an_event_written_by_plain_msgpack_is_read() -> None:
    """Another language writes the required fields and leaves the rest to their defaults."""
    fields = {"id": "q1", "run_id": "r", "agent": "calc", "input": {"question": "1+1"}}
    fields |= {"sample_index": 2, "group_size": 8}
    data = msgpack.packb(fields)
    assert decode(Task, data) == TASK


def test_a_golden_model_call_does_not_change_by_accident() -> None:
    """These bytes were written once; a reader of today's messages must still understand them."""
    golden = (
        b"\xde\x00\x07\xa5index\x00\xa5model\xa6policy\xa4node\xa2n1"
        b"\xaaprompt_ids\xc4\x0c\x01\x00\x00\x00\x02\x00\x00\x00\x03\x00\x00\x00"
        b"\xacresponse_ids\xc4\x08\x04\x00\x00\x00\x05\x00\x00\x00"
        b"\xa8logprobs\xc4\x08\x00\x00\x00\xbf\x00\x00\x80\xbe"
        b"\xafweight_versions\x92\x83\xa7version\x07\xa5start\x00\xa3end\x01\x83\xa7version\x08\xa5start\x01\xa3end\x02"
    )
    assert encode(CALL) == golden
    assert decode(ModelCall, golden) == CALL


def test_unknown_fields_of_a_newer_writer_are_ignored() -> None:
    """Adding a field is no breaking change."""
    raw = msgpack.unpackb(encode(TASK))
    assert decode(Task, msgpack.packb({**raw, "new": 1})) == TASK


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"group_size": 0}, r"`\$.group_size`"),
        ({"agent": "no spaces"}, r"`\$.agent`"),
        ({"mode": "test"}, r"`\$.mode`"),
        ({"deadline": -1.0}, r"`\$.deadline`"),
        ({"id": 5}, r"`\$.id`"),
    ],
)
def test_a_bad_field_is_one_sentence_that_names_it(fields: dict[str, object], sentence: str) -> None:
    """The writer of the message learns which field is wrong."""
    raw = msgpack.unpackb(encode(TASK))
    with pytest.raises(DecodeError, match=sentence):
        decode(Task, msgpack.packb({**raw, **fields}))


@given(st.binary(max_size=200))
def test_garbage_is_a_decode_error_and_nothing_else(data: bytes) -> None:
    """No bytes from the wire make a reader raise anything but DecodeError."""
    with pytest.raises(DecodeError):
        decode(SpanBatch, data)


def test_a_missing_field_a_deep_nest_and_a_wrong_name_are_decode_errors() -> None:
    """Each has its own error."""
    with pytest.raises(DecodeError, match="missing required field `run_id`"):
        decode(Task, msgpack.packb({"id": "q", "agent": "calc", "input": 1}))
    with pytest.raises(DecodeError, match="Task is not"):
        decode(Task, b"\x91" * 5000)
    with pytest.raises(DecodeError, match="no event is called 'Nonsense'"):
        decode_as("Nonsense/1", b"")
    with pytest.raises(DecodeError, match="schema version 9"):
        decode_as("Task/9", encode(TASK))


def test_size_limits_hold_both_ways() -> None:
    """Nothing larger than the limit is written or read."""
    big = Task(id="q", run_id="r", agent="a", input="x" * MAX_BYTES)
    with pytest.raises(EncodeError, match="the limit is"):
        encode(big)
    with pytest.raises(DecodeError, match="the limit is"):
        decode(Task, b"\x00" * (MAX_BYTES + 1))


def test_a_value_messagepack_has_no_form_for_is_an_encode_error() -> None:
    """The publisher gets the error, not the reader."""
    with pytest.raises(EncodeError, match="Task cannot be written"):
        encode(Task(id="q", run_id="r", agent="a", input=2**70))


def test_schema_names_carry_the_version() -> None:
    """The header names type and version, and decodes to the same event."""
    assert schema_of(TASK) == f"Task/{VERSION}"
    assert decode_as(f"Task/{VERSION}", encode(TASK)) == TASK


def test_a_span_batch_survives_the_round_trip_with_its_arrays_untouched() -> None:
    """Arrays stay raw bytes through both steps of decoding."""
    span = Span(trace_id="a" * 32, span_id="b" * 16, name="chat policy", start_ns=1, end_ns=2, call=CALL)
    batch = SpanBatch(
        run_id="r",
        task_id="q1",
        rollout_id="q1.0",
        sample_index=0,
        group_size=1,
        attempt=1,
        execution_id="e",
        agent="calc",
        mode="train",
        runner="me",
        sequence=0,
        spans=(span,),
    )
    assert decode(SpanBatch, encode(batch)) == batch
