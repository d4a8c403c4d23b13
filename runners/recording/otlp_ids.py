"""Ids of traces and spans, as exporters write them. Pure."""

import base64
import binascii
from typing import Any

from lightningbus.runners.recording.refusals import InvalidSpanError

TRACE_BYTES, SPAN_BYTES = 16, 8
LENGTHS = {"traceId": TRACE_BYTES, "spanId": SPAN_BYTES, "parentSpanId": SPAN_BYTES}
LENGTHS |= {"trace_id": TRACE_BYTES, "span_id": SPAN_BYTES, "parent_span_id": SPAN_BYTES}
"""Bytes of the ids, by their names in JSON; some exporters write the protocol's own names."""


def decode_id(name: str, text: Any) -> bytes:
    """Decode an id of JSON: hexadecimal, as in OTLP, or base64, as in protobuf; none if it is null or empty.

    Raises `InvalidSpanError` for anything else.
    """
    if text is None or text == "":
        return b""
    if isinstance(text, str):
        for decode in (bytes.fromhex, _decode_base64):
            try:
                value = decode(text)
            except ValueError:
                continue
            if len(value) == LENGTHS[name]:
                return value
    raise InvalidSpanError("id", f"{name} {str(text)[:40]!r} is not {LENGTHS[name]} bytes in hexadecimal")


def check_id(name: str, value: bytes) -> None:
    """Raise `InvalidSpanError` for an id of another length, or of zeros only; an empty one is valid."""
    if value and (len(value) != LENGTHS[name] or not any(value)):
        raise InvalidSpanError("id", f"{name} {value.hex()[:40]!r} is not {LENGTHS[name]} bytes, or zero")


def read_parent(value: bytes) -> str:
    """Return the id of a span's parent in hexadecimal; empty for none, which some exporters write as zeros."""
    return value.hex() if any(value) else ""


def _decode_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), b"-_" if "-" in text or "_" in text else None, True)
    except binascii.Error as error:
        raise ValueError(str(error)) from error
