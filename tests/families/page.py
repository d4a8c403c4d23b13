"""The table of `docs/models.md`, made of what was measured. Pure."""

from collections.abc import Mapping
from typing import Any

from benchmarks.results import fill_page
from lightningbus.learner.model_check.agreement import MAX_DIFFERENCE

BEGIN, END = "<!-- make models: begin -->", "<!-- make models: end -->"


def is_right(part: Mapping[str, Any]) -> bool:
    """Return whether an engine agreed with the learner after each swap."""
    return "refused" not in part and max(part.get("differences") or [float("inf")]) <= MAX_DIFFERENCE


def count_tested(results: Mapping[str, Any]) -> int:
    """Count the families that a learner trains and an engine serves right."""
    return sum("refused" not in item["learner"] and is_right(item.get("engine", {})) for item in results.values())


def render(results: Mapping[str, Any]) -> str:
    """Render the table, a line for each family."""
    lines = [
        "| family | learner | engine after three swaps | LoRA, merged | files |",
        "|---|---|---|---|---|",
    ]
    for name, item in sorted(results.items()):
        learner = item["learner"]
        if "refused" in learner:
            lines.append(f"| {name} | *refused*: {_shorten(learner['refused'])} | – | – | – |")
            continue
        rows = "packed" if learner["is_packed"] else "padded"
        files = "same names" if learner["has_names_of_its_files"] else "**other names**"
        how = f"*tested*: {learner['attention']}, {rows}, {learner['difference']:.0e}"
        lines.append(f"| {name} | {how} | {_describe(item['engine'])} | {_describe(item['lora'])} | {files} |")
    tested = count_tested(results)
    return "\n".join([f"{tested} of {len(results)} families are right from the learner to the engine.", "", *lines])


def fill(page: str, table: str) -> str:
    """Return the page with the table between its marks."""
    return fill_page(page, BEGIN, table, END)


def _describe(part: Mapping[str, Any]) -> str:
    if "refused" in part:
        return f"*refused*: {_shorten(part['refused'])}"
    if "differences" not in part:
        return "*not tried*"
    most = max(part["differences"])
    return f"*tested*: {most:.0e}" if is_right(part) else f"*refused* by the engine check: {most:.1g} nats off"


def _shorten(reason: str) -> str:
    text = " ".join(reason.split()).replace("|", "/").replace("<", "‹").replace(">", "›")
    return text if len(text) <= 120 else f"{text[:119]}…"
