"""The alert rules as the table of docs/operations.md."""

import re

from lightningbus.alerts.table import ALERT_RULES


def render_alert_rules() -> str:
    """Return the table of alert rules as Markdown."""
    lines = ["| raised by | when | threshold | it says |", "|---|---|---|---|"]
    for rule in ALERT_RULES.values():
        sentence = re.sub(r"(\{.*?\})+", "…", rule.sentence).replace("`", "")
        lines.append(f"| {rule.raised_by} | {rule.condition} | {rule.threshold} | `{sentence}` |")
    return "\n".join(lines)
