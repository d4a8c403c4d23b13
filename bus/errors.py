"""Errors of the bus, and whether each is worth a retry."""

from enum import Enum
from typing import Any


class BusError(Exception):
    """The bus denied a request or could not be reached; the message says what to do."""


class CredentialsError(BusError):
    """A key file is unusable, the server denies access or the request, or the server is not the expected one."""


class AddressError(BusError):
    """The address of the bus is malformed. A retry does not help."""


class PublishTimeoutError(BusError):
    """No acknowledgement before the deadline; the message may or may not be stored."""


class StreamFullError(BusError):
    """The stream is at its limit and stayed there until the deadline: readers are too slow or gone."""


class StorageFullError(StreamFullError):
    """The server, or the account, had no storage left for the message until the deadline."""


class DlqLimitExceededError(Exception):
    """Most messages are invalid. The reader stops instead of dead-lettering them all."""


class FencedError(BusError):
    """Another writer has written to the subject since this writer last read it."""


class DuplicateMessageError(BusError):
    """The first try of a message met another one of the same id: the message is not stored."""


class ChecksumMismatchError(BusError):
    """A blob's bytes do not match its manifest."""


NO_STORAGE = (
    "the storage of the bus's server is full: raise max_file_store in nats-server's configuration, or the account's "
    "limit, and restart it; or keep fewer weight versions (keep_weight_versions), or off the bus (weights.transport)"
)


class PublishFailure(Enum):
    """The reaction to a failed publish."""

    RETRY = "retry"
    FULL = "full"
    NO_STORAGE = "no storage"
    FENCED = "fenced"
    FATAL = "fatal"


_FENCED = {10071, 10164}
FULL_ACCOUNT = 10002
FULL_STORAGE = frozenset([10023, 10047])
"""Error numbers of nats-server: its limits of storage, and those of a cluster's servers."""
_NO_STORAGE = {FULL_ACCOUNT, *FULL_STORAGE}
"""The stream itself has room, and no reader of it can make more."""
_FATAL = {10060, 10054, 10201}
DUPLICATE_IN_PROCESS = "is in process"
"""Server error while an earlier publish with this id is being replicated. The retry is then answered as a duplicate."""


def classify(error: dict[str, Any]) -> PublishFailure:
    """Classify the ``error`` object of a JetStream publish acknowledgement.

    A full stream answers the generic 503/10077 "store failed", so only its description sets it apart from other 503s.
    """
    code, number = error.get("code"), error.get("err_code")
    description = str(error.get("description", ""))
    if number in _FENCED:
        return PublishFailure.FENCED
    if number in _NO_STORAGE:
        return PublishFailure.NO_STORAGE
    if number in _FATAL:
        return PublishFailure.FATAL
    if DUPLICATE_IN_PROCESS in description:
        return PublishFailure.RETRY
    if "maximum" in description and "exceeded" in description:
        return PublishFailure.FULL
    if code in (429, 503):
        return PublishFailure.RETRY
    return PublishFailure.FATAL
