"""Log lines on standard error: for people, or one JSON object each for a collector.

Modules log by the standard library. structlog renders the JSON, with the fields that `bind_process_context` and
structlog's context variables add.
"""

import json
import logging
import sys
import warnings
from types import TracebackType
from typing import Any

import structlog
from structlog.typing import EventDict

from lightningbus.common.observability.log_format import LogFormat
from lightningbus.common.observability.printed_lines import log_printed_lines
from lightningbus.common.printable import printable_json, to_printable

WARNING_LOGGERS = ("asyncio", "httpx", "filelock", "nats", "matplotlib")
ERROR_LOGGERS = ("urllib3", "clickhouse_connect")
"""Libraries whose warnings repeat their exceptions, which we log in one sentence."""


class JsonFormatter(structlog.stdlib.ProcessorFormatter):
    """A line as an object: time, level, logger, message; role, run and rollout where they are known."""

    def __init__(self) -> None:
        self.process_context: dict[str, str] = {}
        """Fields of every line of this process, in any thread."""
        super().__init__(
            foreign_pre_chain=[
                structlog.processors.TimeStamper("iso", key="time"),
                structlog.stdlib.add_log_level,
                structlog.contextvars.merge_contextvars,
                self._add_process_context,
                structlog.stdlib.add_logger_name,
                structlog.processors.format_exc_info,
                structlog.processors.EventRenamer("message"),
            ],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(lambda event, **_: printable_json(event)),
            ],
        )

    def _add_process_context(self, logger: Any, method: str, event: EventDict) -> EventDict:
        return {**self.process_context, **event}


class HumanFormatter(logging.Formatter):
    """A line for people. Control characters are replaced; further lines are indented."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname).1s %(name)s: %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        """See the class."""
        return to_printable(super().format(record)).replace("\n", "\n    ")


def configure_logging(verbose: bool = False, form: LogFormat = LogFormat.human) -> None:
    """Log to standard error, one line per event; in JSON, what is printed there too."""
    handler = logging.StreamHandler(sys.stderr)
    if not verbose:
        handler.addFilter(lambda line: line.levelno >= logging.WARNING or not _is_of_verl(line.name))
        warnings.filterwarnings("ignore", r"\w+ engine is not available", UserWarning, r"verl\.")
    handler.addFilter(lambda line: line.name.partition(".")[0] not in ERROR_LOGGERS)
    if form is LogFormat.json:
        handler.setFormatter(JsonFormatter())
        logging.captureWarnings(True)
        sys.excepthook = _log_uncaught
        log_printed_lines("stderr")
    else:
        handler.setFormatter(HumanFormatter())
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=[handler])
    # nats-py reads TLS by asyncio's streams, of which asyncio itself complains at each close.
    logging.getLogger("asyncio").addFilter(lambda line: "eof_received()" not in str(line.msg))
    for noisy in WARNING_LOGGERS:
        logging.getLogger(noisy).setLevel(logging.WARNING)


def _is_of_verl(logger: str) -> bool:
    """Return whether a logger is verl's, which names some by file and reports every file that a checkpoint writes."""
    return logger.startswith("/") or logger.partition(".")[0] == "verl"


def find_json_formatter() -> JsonFormatter | None:
    """Find the formatter of this process, if its lines are objects."""
    formatters = [handler.formatter for handler in logging.getLogger().handlers]
    return next((formatter for formatter in formatters if isinstance(formatter, JsonFormatter)), None)


def bind_process_context(**fields: str | None) -> None:
    """Add fields, such as role and run, to every later line of this process."""
    if (formatter := find_json_formatter()) is not None:
        formatter.process_context |= {name: value for name, value in fields.items() if value}


def log_standard_output() -> None:
    """Log what this process prints, where log lines are objects: a role has no result to print."""
    if find_json_formatter() is not None:
        log_printed_lines("stdout")


def print_fatal(sentence: object) -> None:
    """Print why a process ends, in the form of its log lines."""
    if find_json_formatter() is not None:
        logging.getLogger("lightningbus").critical("%s", sentence)
    else:
        print(f"lightningbus: {to_printable(str(sentence))}", file=sys.stderr, flush=True)


def extract_message(line: str) -> str:
    """Extract the message of a log line in either format."""
    try:
        return str(json.loads(line)["message"])
    except (ValueError, LookupError, TypeError):
        return line.removeprefix("lightningbus: ")


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    text = f"ended by {kind.__name__}: {error}"
    logging.getLogger("lightningbus").critical(text, exc_info=(kind, error, trace))
