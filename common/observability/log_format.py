"""The two forms of a log line; importing it loads nothing else, so that `lightningbus --help` stays quick."""

from enum import StrEnum

FORMAT_VARIABLE = "LIGHTNINGBUS_LOG_FORMAT"


class LogFormat(StrEnum):
    """How a log line looks."""

    human = "human"
    json = "json"
