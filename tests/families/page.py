"""The table of `docs/models.md`, made of what was measured. Pure."""

from collections.abc import Mapping
from statistics import median
from typing import Any

from benchmarks.results import fill_page
from lightningbus.learner.model_check.agreement import MAX_DIFFERENCE, find_engine_tolerance

BEGIN, END = "<!-- make models: begin -->", "<!-- make models: end -->"


def is_right(part: Mapping[str, Any]) -> bool:
    """Return whether an engine agreed with the learner after each swap."""
    return "refused" not in part and max(part.get("differences") or [float("inf")]) <= MAX_DIFFERENCE


def is_tested(item: Mapping[str, Any]) -> bool:
    """Return whether a learner trains a family and an engine serves it right."""
    return "refused" not in item.get("learner", {"refused": ""}) and is_right(item.get("engine", {}))


def count_tested(results: Mapping[str, Any]) -> int:
    """Count the families that a learner trains and an engine serves right."""
    return sum(is_tested(item) for item in results.values())


def render(results: Mapping[str, Any]) -> str:
    """Render the table, a line for each family."""
    lines = [
        "| family | learner | engine after three swaps | LoRA, merged | files | three steps |",
        "|---|---|---|---|---|---|",
    ]
    for name, item in sorted(results.items()):
        learner = item["learner"]
        if "refused" in learner:
            lines.append(f"| {name} | *refused*: {_shorten(learner['refused'])} | – | – | – | – |")
            continue
        rows = "packed" if learner["is_packed"] else "padded"
        files = "same names" if learner["has_names_of_its_files"] else "**other names**"
        how = f"*tested*: {learner['attention']}, {rows}, {learner['difference']:.0e}"
        bound = find_engine_tolerance(learner["rounding"])
        engine, lora = (_describe(item[part], bound) for part in ("engine", "lora"))
        steps = _describe_steps(item.get("training", {}))
        lines.append(f"| {name} | {how} | {engine} | {lora} | {files} | {steps} |")
    tested = count_tested(results)
    head = f"{tested} of {len(results)} families are right from the learner to the engine."
    trained = [item["training"]["differences"] for item in results.values() if is_right(item.get("training", {}))]
    if trained:
        head += f" Trained for three steps: {len(trained)}, at most {max(map(max, trained)):.0e} nats apart."
    return "\n".join([head, "", *lines, *_describe_cost(results)])


def fill(page: str, table: str) -> str:
    """Return the page with the table between its marks."""
    return fill_page(page, BEGIN, table, END)


def _describe_cost(results: Mapping[str, Any]) -> list[str]:
    parts = [[item.get(part, {}).get("seconds") for item in results.values()] for part in ("learner", "engine")]
    known = [[seconds for seconds in part if seconds] for part in parts]
    if not all(known):
        return []
    learner, engine = (f"{median(part):.2f} s, at most {max(part):.2f} s" for part in known)
    return ["", f"The check takes the learner {learner} of CPU, and the engine {engine}."]


def _describe(part: Mapping[str, Any], bound: float) -> str:
    """Describe a measurement; ``bound`` is the engine check's, in nats per token."""
    if "all_linear" in part:
        attention = _describe({key: value for key, value in part.items() if key != "all_linear"}, bound)
        return f"attention alone {attention}; all *refused*"
    if "refused" in part:
        return f"*refused*: {_shorten(part['refused'])}"
    if "differences" not in part:
        return "*not tried*"
    most = max(part["differences"])
    if is_right(part):
        return f"*tested*: {most:.0e}"
    return f"*rounded*: {most:.0e}" if most <= bound else f"*refused* by the engine check: {most:.1g} nats off"


def _describe_steps(training: Mapping[str, Any]) -> str:
    """Describe a run's steps by the largest mean difference of engine and learner."""
    if "refused" in training:
        return f"*refused*: {_shorten(training['refused'])}"
    if not training.get("differences"):
        return "*not tried*"
    most = max(training["differences"])
    return f"*tested*: {most:.0e}" if most <= MAX_DIFFERENCE else f"**{most:.0e}**"


def _shorten(reason: str) -> str:
    text = " ".join(reason.split()).replace("|", "/").replace("<", "‹").replace(">", "›")
    return text if len(text) <= 120 else f"{text[:119]}…"
