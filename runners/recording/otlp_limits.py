"""How much one request of telemetry may ask to be converted. What is sent in two bytes may cost a thousand."""

MAX_BYTES = 4 * 1024 * 1024
"""Of a body, unpacked: what an event on the bus may have, and what OTLP's receivers over gRPC take."""
MAX_SPANS = 10_000
"""Spans, or log records."""
MAX_VALUES = 200_000
"""Attributes, elements of lists, events and links; of JSON, objects and lists."""
MAX_SHARED_BYTES = 16 * 1024 * 1024
"""Of resources and scopes, counted for each span that they belong to, because each span carries them."""


class InvalidOtlpError(ValueError):
    """Not an OTLP request, or too much in one; the message says why."""


class Budget:
    """The values that one request may still bring."""

    def __init__(self) -> None:
        self._left = MAX_VALUES

    def spend(self, values: int = 1) -> None:
        """Count values before they are converted; raises `InvalidOtlpError` if the request has too many."""
        self._left -= values
        if self._left < 0:
            raise InvalidOtlpError(f"more than {MAX_VALUES} values in one request")


def check_count(spans: int) -> None:
    """Raise `InvalidOtlpError` for too many spans, or log records, in one request."""
    if spans > MAX_SPANS:
        raise InvalidOtlpError(f"{spans} spans in one request; the limit is {MAX_SPANS}")
