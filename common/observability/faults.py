"""Faults: unforeseen errors. Each costs one message, but neither the process that reads it nor its slot."""

import logging
import traceback

from lightningbus.common.observability import metrics
from lightningbus.schemas.text import shorten

log = logging.getLogger(__name__)

MAX_TRACEBACK = 16_000
"""Logged characters of a traceback; its error may contain a stranger's text."""


def count_fault(what: str, error: Exception) -> None:
    """Count and log an error that was met while ``what`` was handled."""
    metrics.faults.inc()
    log.error("%s: %s", what, shorten("".join(traceback.format_exception(error)), MAX_TRACEBACK))
