"""Faults: unforeseen errors. Each costs one message, but neither the process that reads it nor its slot."""

import logging
import traceback

from lightningbus.common.observability import metrics
from lightningbus.schemas.text import shorten

log = logging.getLogger(__name__)

MAX_TRACEBACK = 16_000
"""Characters of a traceback that are logged; its error may hold whatever a stranger sent."""


def count_fault(what: str, error: Exception) -> None:
    """Count and log an error that was met while ``what`` was handled."""
    metrics.faults.inc()
    log.error("%s: %s", what, shorten("".join(traceback.format_exception(error)), MAX_TRACEBACK))
