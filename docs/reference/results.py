"""The table of the fields of ``results.json``."""

from lightningbus.run.evaluation.evaluation import Evaluation
from lightningbus.run.machine.hardware import Hardware
from lightningbus.run.results.model_results import ModelEvaluation, ModelResults
from lightningbus.run.results.prompt_files import PromptFile
from lightningbus.run.results.prompt_round import PromptRound
from lightningbus.run.results.results import Results


def render_results() -> str:
    """Render the fields as a Markdown table."""
    lines = ["| field | what |", "|---|---|"]
    for prefix, kind in (
        ("", Results),
        ("models.NAME.", ModelResults),
        ("models.NAME.evaluations[].", ModelEvaluation),
        ("evaluations[].", Evaluation),
        ("prompt_rounds[].", PromptRound),
        ("prompts.NAME.", PromptFile),
        ("hardware.", Hardware),
    ):
        lines += [
            f"| `{prefix}{name}` | {field.description} |"
            for name, field in kind.model_fields.items()
            if kind is not Results or name != "hardware"
        ]
    return "\n".join(lines)
