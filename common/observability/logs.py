"""Log lines on standard error: for people, or one JSON object each for whatever collects them."""

import json
import logging
import sys
from datetime import UTC, datetime
from enum import StrEnum
from types import TracebackType
from typing import Any

from common.printable import printable_json, to_printable

FORMAT_VARIABLE = "LIGHTNINGBUS_LOG_FORMAT"
WARNING_LOGGERS = ("asyncio", "httpx", "filelock", "nats")
ERROR_LOGGERS = ("urllib3", "clickhouse_connect")
"""What these warn of they raise too, and it is said in a sentence of ours."""


class LogFormat(StrEnum):
    """How a log line looks."""

    human = "human"
    json = "json"


class JsonFormatter(logging.Formatter):
    """A line as an object: time, level, logger, message; role, run and rollout where they are known."""

    def __init__(self) -> None:
        super().__init__()
        self.context: dict[str, str] = {}
        """Fields of every line of this process."""

    def format(self, record: logging.LogRecord) -> str:
        """See the class."""
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            **self.context,
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields |= {name: getattr(record, name) for name in ("run", "rollout") if hasattr(record, name)}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return printable_json(fields)


class HumanFormatter(logging.Formatter):
    """A line for people. Control characters are replaced; further lines are indented."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname).1s %(name)s: %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        """See the class."""
        return to_printable(super().format(record)).replace("\n", "\n    ")


def configure_logging(verbose: bool = False, form: LogFormat = LogFormat.human) -> None:
    """Log lines on standard error, one per event."""
    handler = logging.StreamHandler(sys.stderr)
    # verl names its loggers by file, and says at every checkpoint what it wrote where.
    handler.addFilter(lambda line: line.levelno >= logging.WARNING or line.name[0] != "/")
    handler.addFilter(lambda line: line.name.partition(".")[0] not in ERROR_LOGGERS)
    if form is LogFormat.json:
        handler.setFormatter(JsonFormatter())
        logging.captureWarnings(True)
        sys.excepthook = _log_uncaught
    else:
        handler.setFormatter(HumanFormatter())
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=[handler])
    # nats-py reads TLS by asyncio's streams, of which asyncio itself complains at each close.
    logging.getLogger("asyncio").addFilter(lambda line: "eof_received()" not in str(line.msg))
    for noisy in WARNING_LOGGERS:
        logging.getLogger(noisy).setLevel(logging.WARNING)


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    text = f"ended by {kind.__name__}: {error}"
    logging.getLogger("lightningbus").critical(text, exc_info=(kind, error, trace))


def find_json_formatter() -> JsonFormatter | None:
    """The formatter of this process, if its lines are objects."""
    formatters = [handler.formatter for handler in logging.getLogger().handlers]
    return next((formatter for formatter in formatters if isinstance(formatter, JsonFormatter)), None)


def bind_process_context(**known: str | None) -> None:
    """Add role and run to every later line of this process."""
    if (formatter := find_json_formatter()) is not None:
        formatter.context |= {name: value for name, value in known.items() if value}


def print_fatal(sentence: object) -> None:
    """The last words of a process that cannot go on."""
    if find_json_formatter() is not None:
        logging.getLogger("lightningbus").critical("%s", sentence)
    else:
        print(f"lightningbus: {to_printable(str(sentence))}", file=sys.stderr, flush=True)


def extract_message(line: str) -> str:
    """What a line says, whichever its form."""
    try:
        return str(json.loads(line)["message"])
    except (ValueError, LookupError, TypeError):
        return line.removeprefix("lightningbus: ")
