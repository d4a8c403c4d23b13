"""Every field of the settings, as the Markdown of docs/settings.md."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from lightningbus.auditor.settings import AuditorSettings
from lightningbus.graders.settings import GraderSettings
from lightningbus.inference.settings import InferenceSettings
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.run.settings.budget import BudgetSettings
from lightningbus.run.settings.evaluation import EvalSettings
from lightningbus.run.settings.optimize import OptimizeSettings
from lightningbus.run.settings.run_file import BusSettings
from lightningbus.runners.settings import RunnerSettings
from lightningbus.store.settings import StoreSettings
from lightningbus.trackers.settings import TrackerSettings

SECTIONS: dict[str, type[BaseModel]] = {
    "bus": BusSettings,
    "store": StoreSettings,
    "inference": InferenceSettings,
    "learner": LearnerSettings,
    "runners": RunnerSettings,
    "auditor": AuditorSettings,
    "grader": GraderSettings,
    "eval": EvalSettings,
    "optimize": OptimizeSettings,
    "budget": BudgetSettings,
    "trackers": TrackerSettings,
}
"""Keys of a run file that hold settings."""


def render_settings() -> str:
    """Return a heading and a table for each section of a run file."""
    return "\n\n".join("\n".join(_section(name, kind)) for name, kind in SECTIONS.items())


def _section(name: str, kind: type[BaseModel]) -> Iterator[str]:
    yield from (f"## {name}", "", "| field | default | what |", "|---|---|---|")
    yield from _rows(kind, "")


def _rows(kind: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in kind.model_fields.items():
        inner = _model_in(field.annotation)
        description = (field.description or "").replace("|", "\\|")
        if description or inner is None:
            yield f"| `{prefix}{name}` | {_default(field, inner)} | {description} |"
        if inner is not None:
            yield from _rows(inner, f"{prefix}{name}.")


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The settings that a field holds, if it holds some: one, a list of them, or perhaps none."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for part in get_args(annotation) if (model := _model_in(part)) is not None), None)


def _default(field: FieldInfo, inner: type[BaseModel] | None) -> str:
    if field.is_required():
        return "needed"
    value = field.get_default(call_default_factory=True)
    if inner is not None or value in (None, "", [], {}, ()):
        return ""
    return f"`{value if isinstance(value, str | Path) else json.dumps(value, default=str)}`"
