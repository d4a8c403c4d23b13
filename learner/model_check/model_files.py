"""Tensors that a model's configuration asks for and its files lack: transformers would make them up."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightningbus.learner.engine.engines import find_model_class
from lightningbus.schemas.weights.safetensors_header import read_tensors


def find_missing_tensors(model_path: Path) -> list[str]:
    """List the tensors that the files lack, sorted; takes no memory for weights.

    Raises whatever transformers raises for a model that it cannot load.
    """
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(model_path, local_files_only=True)
    model_class = find_model_class(config)
    try:
        with _silent():
            _, report = model_class.from_pretrained(
                model_path, device_map="meta", output_loading_info=True, local_files_only=True
            )
        return sorted(report["missing_keys"])
    except RuntimeError:  # an expert is missing, so that a layer's experts cannot be joined
        if missing := sorted(_find_file_names(model_class, config) - read_tensors(model_path).keys()):
            return missing
        raise


def _find_file_names(model_class: Any, config: Any) -> set[str]:
    """Return the names by which transformers saves the tensors of a model."""
    import torch
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import revert_weight_conversion

    with torch.device("meta"):
        model = model_class(config)
    model._weight_conversions = get_model_conversion_mapping(model)
    tied: Mapping[str, str] = getattr(model, "all_tied_weights_keys", {})
    tensors = {name: tensor for name, tensor in model.state_dict().items() if name not in tied}
    return set(revert_weight_conversion(model, tensors))


@contextmanager
def _silent() -> Iterator[None]:
    """Keep transformers from printing its own table of missing tensors."""
    from transformers.utils import logging as transformers_logging

    verbosity: int = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
