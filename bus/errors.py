"""What can go wrong on the bus, and which of it is worth another try."""

from enum import Enum
from typing import Any


class BusError(Exception):
    """The bus refused, or could not be reached; the message says what to do."""


class CredentialsError(BusError):
    """A key file is unusable, the server denies access or the request, or the server is not the expected one."""


class AddressError(BusError):
    """The address of the bus is malformed. A retry does not help."""


class PublishTimeoutError(BusError):
    """No acknowledgement before the deadline; the message may or may not be stored."""


class StreamFullError(BusError):
    """The stream is at its limit and stayed there until the deadline: readers are too slow or gone."""


class DlqLimitExceededError(Exception):
    """Most messages are invalid. The reader stops instead of dead-lettering them all."""


class FencedError(BusError):
    """Another writer has written to the subject since this writer last read it."""


class DuplicateMessageError(BusError):
    """The first try of a message met another one of the same id: the message is not stored."""


class ChecksumMismatchError(BusError):
    """A blob's bytes are not what its manifest says."""


class PublishFailure(Enum):
    """What to do about a failed publish."""

    RETRY = "retry"
    FULL = "full"
    FENCED = "fenced"
    FATAL = "fatal"


_FENCED = {10071, 10164}
_FATAL = {10060, 10054, 10201}
DUPLICATE_IN_PROCESS = "is in process"
"""An earlier try of the same message is on its way through a cluster: the next one is told that it is there."""


def classify(error: dict[str, Any]) -> PublishFailure:
    """Classify the ``error`` object of a JetStream publish acknowledgement.

    A full stream answers the generic 503/10077 "store failed", so it is told from other 503s by its description.
    """
    code, number = error.get("code"), error.get("err_code")
    description = str(error.get("description", ""))
    if number in _FENCED:
        return PublishFailure.FENCED
    if number in _FATAL:
        return PublishFailure.FATAL
    if DUPLICATE_IN_PROCESS in description:
        return PublishFailure.RETRY
    if "maximum" in description and "exceeded" in description:
        return PublishFailure.FULL
    if code in (429, 503):
        return PublishFailure.RETRY
    return PublishFailure.FATAL
