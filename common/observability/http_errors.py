"""Log lines about HTTP requests that cannot be read."""

import logging

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError


class _HttpErrorFilter(logging.Filter):
    """Logs a malformed HTTP request as one line without its content: the sender controls both text and frequency."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError | web.RequestPayloadError):
            record.msg, record.args = "a request could not be read as HTTP: %s", (type(error).__name__,)
            record.exc_info, record.levelno, record.levelname = None, logging.INFO, "INFO"
        return True


def quiet_http_logger() -> logging.Logger:
    """Return the logger of an HTTP server, by which a malformed request is one line of a log without a traceback."""
    quiet = logging.getLogger(f"{__name__}.http")
    if not quiet.filters:
        quiet.addFilter(_HttpErrorFilter())
    return quiet
