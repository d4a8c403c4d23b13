"""The README.md of an exported model. Pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from learner.settings.learner import LearnerSettings
from lightningbus.run.evaluation import Evaluation
from lightningbus.run.results import Results
from schemas.weights.events import WeightManifest

CARD = "README.md"
UNLISTED_SETTINGS = {"run", "model", "model_path", "tasks", "id", "checkpoint_dir", "health_address", "cpu_threads"}
"""Settings of the learner that say where it ran, not how it trained; or that the card states by themselves."""


@dataclass(frozen=True, slots=True)
class CardFacts:
    """What a card is made of."""

    manifest: WeightManifest
    base_model: str
    """Name of the model that training started from."""
    is_adapter: bool
    learner: Mapping[str, Any]
    """The learner's settings; empty if unknown."""
    results: Results | None


def render_card(facts: CardFacts) -> str:
    """The card in Markdown, with the Hub's metadata at its top."""
    manifest = facts.manifest
    library = "peft" if facts.is_adapter else "transformers"
    published = datetime.fromtimestamp(manifest.created_at_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    digest = manifest.fingerprint or manifest.blobs[-1].sha256
    kind = "xxh3-128 of the weights" if manifest.fingerprint else "SHA-256 of the adapters"
    parts = [
        f"---\nlibrary_name: {library}\npipeline_tag: text-generation\n"
        "tags: [lightningbus, reinforcement-learning]\n---",
        f"# {manifest.run_id}, version {manifest.version}",
        f"Weight version {manifest.version} of run `{manifest.run_id}`, trained by reinforcement learning "
        f"with lightningbus from `{facts.base_model}`.",
        f"| | |\n|---|---|\n| run | `{manifest.run_id}` |\n| version | {manifest.version} |\n"
        f"| training step | {manifest.step} |\n| published | {published} |\n| {kind} | `{digest}` |",
        *_results(facts),
        "## Load it",
        _usage(facts.is_adapter),
        *_settings(facts.learner),
    ]
    return "\n\n".join(parts) + "\n"


def _results(facts: CardFacts) -> list[str]:
    """Held-out rewards of this version and of the first one; nothing where none were measured."""
    evaluations = facts.results.evaluations if facts.results is not None else []
    first = min((each.version for each in evaluations), default=0)
    rows = [_row(each) for each in evaluations if each.version in (first, facts.manifest.version)]
    if not rows:
        return []
    table = ["| version | answers | mean reward | standard error | problems |", "|---|---|---|---|---|", *rows]
    return ["## Results", "Held-out reward; the model was never trained on these problems.", "\n".join(table)]


def _row(evaluation: Evaluation) -> str:
    error = f"{evaluation.standard_error:.4f}" if evaluation.standard_error is not None else ""
    cells = (evaluation.version, evaluation.label, f"{evaluation.accuracy:.4f}", error, evaluation.num_problems)
    return "".join(f"| {cell} " for cell in cells) + "|"


def _usage(is_adapter: bool) -> str:
    if is_adapter:
        return (
            "```python\nfrom peft import AutoPeftModelForCausalLM\n\n"
            'model = AutoPeftModelForCausalLM.from_pretrained("DIRECTORY")\n```'
        )
    return (
        "```python\nfrom transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
        'model = AutoModelForCausalLM.from_pretrained("DIRECTORY")\n'
        'tokenizer = AutoTokenizer.from_pretrained("DIRECTORY")\n```\n\n'
        "or `vllm serve DIRECTORY`."
    )


def _settings(learner: Mapping[str, Any]) -> list[str]:
    """The settings of the learner that are not the defaults."""
    if not learner:
        return []
    changed = LearnerSettings.model_validate(learner).model_dump(
        mode="json", exclude_defaults=True, exclude=UNLISTED_SETTINGS
    )
    changed.get("weights", {}).pop("location", None)
    changed.get("weights", {}).pop("canary", None)
    return ["## Settings", "Those of the learner that differ from the defaults.", _code(changed)]


def _code(value: object) -> str:
    return f"```json\n{json.dumps(value, indent=2)}\n```"
