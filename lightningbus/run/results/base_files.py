"""Files of the models that a training job started from, on record: an export refuses a base model that has changed."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.run.errors import UserError
from lightningbus.run.run_directory.whole_file import write_whole

RECORD = "base_models.json"
MODEL_SUFFIXES = (".json", ".jinja", ".txt", ".model", ".tiktoken", ".py")
"""Ends of the names of configuration and tokenizer files."""
WEIGHTS = ("*.safetensors", "*.bin")


def describe_files(path: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of configuration and tokenizer, and the size of each file of weights, by name."""
    files = {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(path.glob("*"))
        if file.is_file() and file.suffix in MODEL_SUFFIXES
    }
    return files | {file.name: f"{file.stat().st_size} bytes" for name in WEIGHTS for file in sorted(path.glob(name))}


def record_base_models(directory: Path, learners: Sequence[LearnerSettings]) -> None:
    """Write what the models of a new job are made of to its directory; raises `UserError` if that fails."""
    try:
        models = {learner.model: describe_files(learner.model_path) for learner in learners}
    except OSError as error:
        raise UserError(f"the model cannot be read: {error}") from error
    write_whole(directory / RECORD, json.dumps(models, indent=2) + "\n")


def read_base_files(directory: Path, model: str) -> dict[str, str]:
    """Read what is on record of a model's base; empty: nothing. Raises `UserError` where the file is damaged."""
    path = directory / RECORD
    try:
        return dict(json.loads(path.read_bytes()).get(model, {}))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise UserError(f"{path} cannot be read ({error}): delete it to go without it") from error


def compute_digest(files: dict[str, str]) -> str:
    """Return the SHA-256 of a record of files: of the JSON object that has a text for each. Pure."""
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()
