"""The metrics of a training step as the table of docs/store.md."""

from lightningbus.schemas.step_metrics import STEP_METRICS


def render_step_metrics() -> str:
    """Return the registry as a Markdown table."""
    lines = ["| metric | in words | unit | meaning |", "|---|---|---|---|"]
    lines += [f"| `{metric.name}` | {metric.title} | {metric.unit} | {metric.meaning} |" for metric in STEP_METRICS]
    return "\n".join(lines)
