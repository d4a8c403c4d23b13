"""Errors in an engine's answer, by whose fault they are. Pure."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

RETRY_STATUS = frozenset({408, 409, 429})
"""Errors of a client that do not mean the request is wrong."""


class InvalidEngineOutputError(ValueError):
    """The engine's answer cannot be recorded exactly; the call counts as failed by our side."""


class RequestRefusedError(ValueError):
    """The engine rejected the request after the stream had begun."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class EngineFailedError(InvalidEngineOutputError):
    """The engine reported its failure after the stream had begun."""


class UnrecordableAnswerError(InvalidEngineOutputError):
    """The answer is whole, and another one to the same request would be no better."""


@contextmanager
def malformed_engine_output() -> Iterator[None]:
    """Turn errors while parsing an engine's output into `InvalidEngineOutputError`."""
    try:
        yield
    except (TypeError, AttributeError, LookupError, OverflowError, RecursionError) as error:
        raise InvalidEngineOutputError(
            f"the engine's answer has not its form: {type(error).__name__}: {error}"
        ) from error


def raise_engine_error(error: dict[str, Any]) -> None:
    """Raise the error of a stream: a status of a client's is the request's fault, any other the engine's."""
    status, message = error.get("code"), str(error.get("message") or "the engine failed")
    if isinstance(status, int) and 400 <= status < 500 and status not in RETRY_STATUS:
        raise RequestRefusedError(status, message)
    raise EngineFailedError(message)
