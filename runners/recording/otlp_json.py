"""OTLP's JSON as protobuf's messages, each span by itself: an odd one costs no other. Pure."""

import base64
import json
from collections.abc import Iterator
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import Message
from opentelemetry.proto.trace.v1 import trace_pb2

from lightningbus.runners.recording.otlp_ids import LENGTHS, decode_id
from lightningbus.runners.recording.otlp_limits import ConversionBudget, InvalidOtlpError, check_count
from lightningbus.runners.recording.refusals import InvalidSpanError, Refusal, Refusals
from lightningbus.schemas.text import replace_surrogates

UNKNOWN = "lightningbus.otlp.unknown."
NAMES = {
    "traces": ("resource_spans", "scope_spans", "spans"),
    "logs": ("resource_logs", "scope_logs", "log_records"),
}
"""Path of spans, or log records, in a request."""
UNREADABLE = (
    json_format.ParseError, ValueError, TypeError, AttributeError, RecursionError, OverflowError,
    SystemError,  # protobuf's own, for a key with half a character in it
)  # fmt: skip
KNOWN_FIELDS = frozenset(
    (*trace_pb2.Span.DESCRIPTOR.fields_by_camelcase_name, *trace_pb2.Span.DESCRIPTOR.fields_by_name)
)


def fill_request(request: Message, signal: str, body: Any, refusals: Refusals) -> None:
    """Put what JSON holds into a request of ``signal``; what cannot be read is refused.

    Raises `InvalidOtlpError` for too much in one request, and ValueError where nothing can be read.
    """
    budget = ConversionBudget()
    _count_objects(body, budget)
    if not isinstance(body, dict):
        raise ValueError("the request is no JSON object")
    groups, scopes, records = NAMES[signal]
    for other, (holder, *_) in NAMES.items():
        if other != signal and _items(body, holder) and not _items(body, groups):
            raise wrong_signal(other)
    check_count(sum(len(_items(scope, records)) for group in _items(body, groups) for scope in _items(group, scopes)))
    for group in _items(body, groups):
        target = getattr(request, groups).add()
        is_readable = _read_shared(group, scopes, target)
        for scope in _items(group, scopes):
            scope_target = getattr(target, scopes).add()
            is_scope_readable = _read_shared(scope, records, scope_target) and is_readable
            for record in _items(scope, records):
                try:
                    if not is_scope_readable:
                        raise InvalidSpanError("form", "its resource or scope is not as OTLP has it")
                    _read(_fields_of(record, signal, budget), getattr(scope_target, records))
                except InvalidOtlpError:
                    raise
                except InvalidSpanError as error:
                    refusals.add(error.refusal)
                except UNREADABLE as error:
                    refusals.add(Refusal("form", f"it is not as OTLP has it: {error}"))


def wrong_signal(signal: str) -> InvalidOtlpError:
    """Build the error for a request that holds another signal than its address names."""
    return InvalidOtlpError(f"the request holds {signal}: send it to /v1/{signal}")


def _read(fields: dict[str, Any], records: Any) -> None:
    """Append the parsed fields to protobuf's list, unless they cannot be read."""
    try:
        json_format.ParseDict(fields, records.add(), ignore_unknown_fields=True)
    except BaseException:
        del records[-1]
        raise


def _items(holder: Any, name: str) -> list[Any]:
    """Return the list of a field, by its JSON name or protobuf's; empty if there is none."""
    if not isinstance(holder, dict):
        return []
    value = holder.get(_camel_case(name)) or holder.get(name)
    return value if isinstance(value, list) else []


def _read_shared(holder: Any, records: str, target: Message) -> bool:
    """Read a resource or scope without its children; return whether it could be read."""
    below = (records, _camel_case(records))
    try:
        fields = {name: field for name, field in holder.items() if name not in below}
        json_format.ParseDict(_normalize(fields), target, ignore_unknown_fields=True)
    except UNREADABLE:
        target.Clear()
        return False
    return True


def _fields_of(record: Any, signal: str, budget: ConversionBudget) -> dict[str, Any]:
    """Collect the fields of a span or log record; those that protobuf would drop from a span become attributes."""
    if not isinstance(record, dict):
        raise InvalidSpanError("form", f"it is no JSON object, but {json.dumps(record)[:40]}")
    unknown = {name: field for name, field in record.items() if signal == "traces" and name not in KNOWN_FIELDS}
    budget.spend(len(unknown))
    fields: dict[str, Any] = _normalize({name: field for name, field in record.items() if name not in unknown})
    if unknown:  # unconverted: JSON within JSON would double in length at each level
        kept = [{"key": UNKNOWN + key, "value": {"stringValue": json.dumps(field)}} for key, field in unknown.items()]
        fields["attributes"] = [*(fields.get("attributes") or ()), *_normalize(kept)]
    return fields


def _normalize(value: Any) -> Any:
    """Convert JSON for protobuf: ids in base64, and no half characters. Raise `InvalidSpanError` for a wrong id."""
    if isinstance(value, str):
        return value if value.isascii() else replace_surrogates(value)
    if isinstance(value, list):
        return [_normalize(element) for element in value]
    if not isinstance(value, dict):
        return value
    return {
        _normalize(name): base64.b64encode(decode_id(name, field)).decode() if name in LENGTHS else _normalize(field)
        for name, field in value.items()
    }


def _count_objects(value: Any, budget: ConversionBudget) -> None:
    """Count objects and lists before any is converted; raises `InvalidOtlpError` for too many."""
    below: list[Iterator[Any]] = [iter((value,))]
    while below:
        for element in below[-1]:
            if isinstance(element, dict | list):
                budget.spend()
                below.append(iter(element.values() if isinstance(element, dict) else element))
                break
        else:
            below.pop()


def _camel_case(name: str) -> str:
    first, *words = name.split("_")
    return first + "".join(map(str.capitalize, words))
