"""Encodes events as MessagePack and decodes them, under size limits.

``msgspec`` decodes MessagePack directly into the frozen struct and validates it, so an invalid message gives one
sentence that names the field. (The ``msgpack`` package with a conversion took four times as long; the tests check that
it reads and writes the same bytes.)
"""

from functools import cache
from typing import Any, TypeVar

import msgspec

from lightningbus.schemas import dead_letters, fleet, grading, prompts, reviews, spans, tasks, training
from lightningbus.schemas.audits import events as audit
from lightningbus.schemas.base import Event
from lightningbus.schemas.subjects import SCHEMA_HEADER
from lightningbus.schemas.text import shorten
from lightningbus.schemas.weights import events as weight_events

E = TypeVar("E", bound=Event)

MAX_BYTES = 4 * 1024 * 1024
"""Largest message that is written or read; the embedded nats-server allows this much plus headers."""

MAX_REASON = 500
"""Characters of an invalid value that an error quotes."""

VERSION = 2
"""Increased when a reader of the previous version could misread a message."""

EVENT_MODULES = (tasks, spans, fleet, dead_letters, training, weight_events, prompts, audit, grading, reviews)

_TYPES: dict[str, type[Event]] = {
    kind.__name__: kind
    for module in EVENT_MODULES
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, Event) and kind is not Event
}
_ENCODER = msgspec.msgpack.Encoder()


@cache
def _decoder(kind: type[Event]) -> "msgspec.msgpack.Decoder[Any]":
    return msgspec.msgpack.Decoder(kind)


class DecodeError(ValueError):
    """The bytes are not a valid event of the expected type; the message gives the reason in one sentence."""


class EncodeError(ValueError):
    """The event cannot be written: it is too large, or has a value that MessagePack cannot represent."""


class EncodeTooLargeError(EncodeError):
    """The event would take more than `MAX_BYTES`."""


def schema_of(event: Event | type[Event]) -> str:
    """Build the value of the ``Lightningbus-Schema`` header: name and version, e.g. ``Task/2``."""
    kind = event if isinstance(event, type) else type(event)
    return f"{kind.__name__}/{VERSION}"


def encode(event: Event) -> bytes:
    """Encode an event as MessagePack; raise `EncodeError`, also over `MAX_BYTES`."""
    try:
        data = _ENCODER.encode(event)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise EncodeError(f"{type(event).__name__} cannot be written: {error}") from error
    if len(data) > MAX_BYTES:
        raise EncodeTooLargeError(f"{type(event).__name__} is {len(data)} bytes; the limit is {MAX_BYTES}")
    return data


def decode(kind: type[E], data: bytes) -> E:
    """Decode and validate an event from MessagePack; raise `DecodeError`."""
    if len(data) > MAX_BYTES:
        raise DecodeError(f"{kind.__name__} is {len(data)} bytes; the limit is {MAX_BYTES}")
    try:
        event: E = _decoder(kind).decode(data)
    except msgspec.ValidationError as error:
        raise DecodeError(f"{kind.__name__} is not valid: {shorten(str(error), MAX_REASON)}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DecodeError(f"{kind.__name__} is not MessagePack: {error}") from error
    except RecursionError as error:
        raise DecodeError(f"{kind.__name__} is nested too deeply") from error
    return event


def check_schema(kind: type[Event], schema: str) -> None:
    """Raise `DecodeError` unless a schema header names this type in the version that this reader knows."""
    name, _, version = schema.partition("/")
    if name != kind.__name__:
        claimed = shorten(schema, MAX_REASON) or "nothing"
        raise DecodeError(f"this is not a {kind.__name__}: its {SCHEMA_HEADER} header says {claimed!r}")
    if version != str(VERSION):
        raise DecodeError(
            f"{name} has schema version {shorten(version, MAX_REASON) or 'none'}; this reader knows {VERSION}"
        )


def decode_as(schema: str, data: bytes) -> Event:
    """Decode an event of the type that its ``Lightningbus-Schema`` header names; raise `DecodeError`."""
    kind = _TYPES.get(name := schema.partition("/")[0])
    if kind is None:
        raise DecodeError(f"no event is called {shorten(name, MAX_REASON)!r}")
    check_schema(kind, schema)
    return decode(kind, data)
