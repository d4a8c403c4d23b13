"""The Prometheus metrics as the table of docs/operations.md."""

from lightningbus.common.observability import metrics as metrics  # its import fills the registry
from lightningbus.common.observability.metric_registry import METRIC_DOCS


def render_metrics() -> str:
    """Return the registry as a Markdown table."""
    lines = ["| metric | role | when it moves | what to do |", "|---|---|---|---|"]
    lines += [f"| `{entry.name}` | {entry.role} | {entry.description} | {entry.runbook} |" for entry in METRIC_DOCS]
    return "\n".join(lines)
