"""Limits on the conversion of one telemetry request: two bytes sent may cost a thousand."""

MAX_BYTES = 4 * 1024 * 1024
"""Largest decompressed body: the limit of an event on the bus, and of OTLP's receivers over gRPC."""
MAX_SPANS = 10_000
"""Spans, or log records."""
MAX_VALUES = 200_000
"""Attributes, elements of lists, events and links; of JSON, objects and lists."""
MAX_SHARED_BYTES = 16 * 1024 * 1024
"""Most bytes of resources and scopes, counted for each of their spans, because each span carries them."""


class InvalidOtlpError(ValueError):
    """The body is no OTLP request, or holds too much; the message gives the reason."""


class ConversionBudget:
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
