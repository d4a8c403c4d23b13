"""The event that keeps a message which could not be processed."""

from schemas.base import Event, NonNegativeInt, SubjectToken


class DeadLetter(Event, frozen=True, kw_only=True):
    """A message nobody could use, with the reason, kept whole."""

    stream: SubjectToken
    subject: str
    sequence: NonNegativeInt
    deliveries: NonNegativeInt
    reason: str
    headers: dict[str, str]
    payload: bytes
    dead_ns: NonNegativeInt
