"""The alarms as the table of docs/operations.md."""

import re

from lightningbus.alerts.table import ALARMS


def render_alarms() -> str:
    """Return the table of alarms as Markdown."""
    lines = ["| raised by | when | threshold | it says |", "|---|---|---|---|"]
    for alarm in ALARMS.values():
        sentence = re.sub(r"(\{.*?\})+", "…", alarm.sentence).replace("`", "")
        lines.append(f"| {alarm.raised_by} | {alarm.condition} | {alarm.threshold} | `{sentence}` |")
    return "\n".join(lines)
