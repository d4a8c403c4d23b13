"""The fields of ``results.json`` as the table of docs/operations.md."""

from lightningbus.run.evaluation.evaluation import Evaluation
from lightningbus.run.machine.hardware import Hardware
from lightningbus.run.results.model_results import ModelEvaluation, ModelResults
from lightningbus.run.results.prompt_files import PromptFile
from lightningbus.run.results.prompt_round import PromptRound
from lightningbus.run.results.results import Results
from lightningbus.run.settings.setting_change import SettingChange

PARTS = (
    ("", Results),
    ("models.NAME.", ModelResults),
    ("models.NAME.evaluations[].", ModelEvaluation),
    ("evaluations[].", Evaluation),
    ("changes[].", SettingChange),
    ("prompt_rounds[].", PromptRound),
    ("prompts.NAME.", PromptFile),
    ("hardware.", Hardware),
)
"""Prefix of the fields of each class."""


def render_results() -> str:
    """Return the table of fields as Markdown."""
    rows = [
        f"| `{prefix}{name}` | {field.description} |"
        for prefix, kind in PARTS
        for name, field in kind.model_fields.items()
        if field.description  # `hardware` has none: its own fields follow
    ]
    return "\n".join(["| field | meaning |", "|---|---|", *rows])
