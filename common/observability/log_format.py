"""The two forms of a log line; importing it loads nothing else, so that `lightningbus --help` stays quick."""

from enum import StrEnum

FORMAT_VARIABLE = "LIGHTNINGBUS_LOG_FORMAT"


class LogFormat(StrEnum):
    """Formats of log lines."""

    human = "human"
    json = "json"
