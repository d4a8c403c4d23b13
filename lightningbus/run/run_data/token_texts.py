"""The text of recorded tokens, special tokens included, by the tokenizer of a run's model."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from lightningbus.learner.transitions.tokenizer import load_detokenizer
from lightningbus.run.errors import UserError
from lightningbus.run.run_data.local_files import find_directory
from lightningbus.run.run_directory.recorded_settings import load_named_run

ADVICE = "`lightningbus rollouts show --prompts --tokenizer DIR` takes the directory of the model"


def read_tokens(run_id: str, model: str, token_ids: Sequence[int], tokenizer: Path | None = None) -> str:
    """Return the text of a model's tokens; ``tokenizer``: the model's directory, by default that of the run.

    Raises `UserError` where the run or its tokenizer is not on this machine. Blocks.
    """
    if not token_ids:
        return ""
    directory = tokenizer or _find_model(run_id, model)
    try:
        detokenize = _load(directory)
    except ImportError as error:
        raise UserError(f"tokens have no text here: {error}; install lightningbus[learner]") from error
    if detokenize is None:
        raise UserError(f"{directory}, the directory of {model!r}, has no tokenizer.json: {ADVICE}")
    return detokenize(token_ids)


def _find_model(run_id: str, model: str) -> Path:
    """Return the directory of a model by the settings that its run has on record."""
    run = find_directory(run_id)
    if run is None:
        raise UserError(f"run {run_id!r} of model {model!r} has no directory here: {ADVICE}")
    settings = load_named_run(str(run.path), None)
    for node in settings.inference:
        if model in node.models:
            return node.model_path
    raise UserError(f"{run.path} has no node of model {model!r} on record: {ADVICE}")


_load = lru_cache(4)(load_detokenizer)
