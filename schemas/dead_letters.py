"""The event that keeps a message which could not be processed."""

from lightningbus.schemas.base import Event, NonNegativeInt, SubjectToken


class DeadLetter(Event, frozen=True, kw_only=True):
    """A message that could not be processed, unchanged, with the reason."""

    stream: SubjectToken
    subject: str
    sequence: NonNegativeInt
    num_delivered: NonNegativeInt
    reason: str
    headers: dict[str, str]
    payload: bytes
    dead_lettered_at_ns: NonNegativeInt
