"""JSON of model calls, read and written by msgspec wherever the standard library gives the same result. Pure."""

import json
from typing import Any

import msgspec

_DECODER, _ENCODER = msgspec.json.Decoder(), msgspec.json.Encoder()


def decode_json(text: bytes) -> Any:
    """Decode as `json.loads`, which accepts what msgspec refuses: NaN, half of a surrogate pair, UTF-16.

    Raises ValueError or RecursionError.
    """
    try:
        return _DECODER.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return json.loads(text)


def encode_json(value: Any) -> bytes:
    """Encode JSON in ASCII; a NaN, which JSON does not have, is null where msgspec writes it."""
    try:
        text = _ENCODER.encode(value)
    except (TypeError, UnicodeEncodeError):  # a key that is no text, half of a surrogate pair
        return json.dumps(value).encode()
    return text if text.isascii() else json.dumps(value).encode()  # some clients end a line at U+2028


def encode_exactly(value: Any) -> bytes:
    """Encode as `encode_json`, but keep a NaN: the receiver decides about it."""
    text = encode_json(value)
    return text if b"null" not in text else json.dumps(value).encode()
