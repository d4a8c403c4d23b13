"""JSON of model calls means what the standard library's means."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightningbus.runners.protocol.json_text import decode_json, encode_exactly, encode_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters()), inner, max_size=4),
    max_leaves=12,
)
"""With halves of surrogate pairs, infinities and whole numbers of any size."""


@given(VALUES)
def test_what_the_standard_library_writes_is_read_as_it_was(value: Any) -> None:
    for text in (json.dumps(value), json.dumps(value, separators=(",", ":"))):
        assert decode_json(text.encode()) == value


@given(VALUES)
def test_what_is_written_is_read_by_the_standard_library_as_it_was(value: Any) -> None:
    text = encode_exactly(value)
    assert json.loads(text) == value and text.isascii()


@pytest.mark.parametrize("text", [b"NaN", b"[NaN, null]", b'{"a": -Infinity, "b": null}', b"1e400"])
def test_numbers_that_json_does_not_have_are_read_and_sent_on(text: bytes) -> None:
    value = decode_json(text)
    assert repr(value) == repr(json.loads(text))
    assert repr(json.loads(encode_exactly(value))) == repr(value)


@pytest.mark.parametrize("text", [b"", b"{", b'{"a":1} x', b"\xff\xfe", b"'a'", b"[1,]"])
def test_what_is_no_json_is_an_error_of_the_standard_library(text: bytes) -> None:
    with pytest.raises(ValueError) as expected:
        json.loads(text)
    with pytest.raises(ValueError) as actual:
        decode_json(text)
    assert str(actual.value) == str(expected.value)


def test_a_client_that_ends_lines_at_u2028_gets_none_and_nan_is_null() -> None:
    assert encode_json({"a": "\u2028"}) == b'{"a": "\\u2028"}'
    assert encode_json([math.nan, 1]) == b"[null,1]"
