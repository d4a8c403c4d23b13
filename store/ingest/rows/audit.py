"""JetStream's own record of who asked it for what, into rows. Pure.

The form of an advisory: https://github.com/nats-io/jsm.go/blob/main/schema_source/jetstream/advisory/v1/api_audit.json.
"""

from collections.abc import Iterator
from datetime import datetime

import msgspec

from lightningbus.schemas.codec import DecodeError
from lightningbus.store.ingest.rows.row import Row

API = "$JS.API."
THREE_WORD_REQUESTS = frozenset({"MSG", "PEER", "LEADER", "DURABLE"})
"""Second words of requests whose names have three."""
READ_REQUESTS = frozenset(
    f"{resource}.{action}" for resource in ("STREAM", "CONSUMER") for action in ("INFO", "NAMES", "LIST", "MSG.GET")
) | {"INFO"}
"""Requests that change nothing: roles make them each second, so only those that failed are kept."""
MAX_ERROR_CHARS = 500


class ApiClient(msgspec.Struct):
    """The client of a request to JetStream."""

    account: str = msgspec.field(name="acc", default="")
    user: str = ""
    name: str = ""
    host: str = ""


class JetStreamError(msgspec.Struct):
    """JetStream's error."""

    description: str = ""


class ApiResponse(msgspec.Struct):
    """The needed part of JetStream's answer."""

    error: JetStreamError | None = None


class Advisory(msgspec.Struct):
    """One request to JetStream and its answer."""

    id: str
    timestamp: datetime
    subject: str
    server: str = ""
    client: ApiClient | None = None
    response: str = ""


def build_audit_rows(data: bytes) -> Iterator[tuple[str, Row]]:
    """Yield (table, row) of an advisory, none for a read that was granted; raise `DecodeError` for an invalid one."""
    try:
        advisory = msgspec.json.decode(data, type=Advisory)
        error = msgspec.json.decode(advisory.response, type=ApiResponse).error if advisory.response else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as reason:
        raise DecodeError(f"this is no advisory of JetStream's API: {reason}") from reason
    client = advisory.client or ApiClient()
    request, target = split_subject(advisory.subject)
    if request in READ_REQUESTS and error is None:
        return
    yield (
        "raw_audit_log",
        {
            "id": advisory.id,
            "account": client.account,
            "user": client.user,
            "client": client.name,
            "host": client.host,
            "server": advisory.server,
            "request": request,
            "target": target,
            "error": (error.description or "unknown")[:MAX_ERROR_CHARS] if error is not None else "",
            "requested_at": int(advisory.timestamp.timestamp() * 1e9),
        },
    )


def split_subject(subject: str) -> tuple[str, str]:
    """Split a subject into the name of a request and its object: ``STREAM.DELETE`` and ``TASKS``."""
    words = subject.removeprefix(API).split(".")
    count = 3 if len(words) > 1 and words[1] in THREE_WORD_REQUESTS else 2
    return ".".join(words[:count]), ".".join(words[count:])
