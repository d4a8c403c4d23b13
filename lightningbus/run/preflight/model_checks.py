"""Checks of a model's folder: a causal language model, its tokenizer, its weights. None of them is loaded."""

import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lightningbus.inference.settings import InferenceSettings
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.run.errors import UserError
from lightningbus.run.preflight.learner_checks import check_adapters
from lightningbus.run.settings.hub_models import describe_missing_model, has_model
from lightningbus.schemas.text import shorten_line

CAUSAL = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
"""Endings of the names of architectures that generate text."""
WEIGHTS = ("*.safetensors", "*.bin")
OTHER_TOKENIZER_FILES = ("tokenizer.json", "tekken.json")


def check_model(
    path: Path, nodes: Sequence[InferenceSettings], learners: Sequence[LearnerSettings], *, is_here: bool = True
) -> Iterator[str]:
    """Yield a sentence about the model in a folder, then warnings; raises `UserError` if it cannot be used.

    The nodes and learners are those that start from it, on this machine if ``is_here``. A node gets its weights from
    the bus, unless it is frozen.
    """
    config, model = make_empty_model(path)
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} holds no model with a tokenizer: {shorten_line(str(error), 200)}") from error
    _check_tokenizer(path, tokenizer, config.get_text_config().vocab_size)
    if learners or any(node.frozen for node in nodes):
        _check_weights(path)
    for node in nodes:
        _check_node(path, node, tokenizer, config, is_here)
    text, parameters = config.get_text_config(), f"{model.num_parameters() / 1e6:,.1f}M parameters"
    yield f"{path}: {config.model_type}, {text.num_hidden_layers} layers, {parameters}, {len(tokenizer)} tokens"
    for learner in learners:
        check_adapters(learner, model)


def check_configuration(path: Path, learner: LearnerSettings) -> Iterator[str]:
    """Check a folder without weights as `check_model` does, for a plan that needs its ``config.json`` alone."""
    check_adapters(learner, make_empty_model(path)[1])
    yield f"warning: {path} holds no weights: the plan is of its config.json alone"


def find_weights(path: Path) -> list[Path]:
    """List the weight files in a folder."""
    return [file for pattern in WEIGHTS for file in sorted(path.glob(pattern))]


def make_empty_model(path: Path) -> tuple[Any, Any]:
    """Read a folder's configuration and create its language model on the meta device; raises `UserError`."""
    if not has_model(path):
        raise UserError(describe_missing_model(path))
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    try:
        config = AutoConfig.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} holds no model: {shorten_line(str(error), 200)}") from error
    auto_class: Any = AutoModelForImageTextToText if _has_images(config) else AutoModelForCausalLM
    if type(config) not in auto_class._model_mapping and not hasattr(config, "auto_map"):
        raise UserError(
            f"{path} holds a model of the kind {config.model_type!r}, of which transformers has no language model: "
            "only models that write text can be trained"
        )
    try:
        with torch.device("meta"):
            model = auto_class.from_config(config)
    except Exception as error:  # a model's code may raise anything
        raise UserError(f"{path} holds no model that can be made: {shorten_line(str(error), 200)}") from error
    _check_architecture(path, config, model)
    return config, model


def find_unknown_tokens(vocabulary: dict[str, int], size: int, added: set[str], used: str) -> list[str]:
    """Find tokens that are used but lie beyond a model's ``size`` tokens. Pure.

    Those in ``added`` count only if they occur in ``used``, the text of the chat template and the like: some models
    have image markers beyond their vocabulary.
    """
    beyond = sorted((number, token) for token, number in vocabulary.items() if number >= size)
    return [token for _, token in beyond if token not in added or token in used]


def _check_architecture(path: Path, config: Any, model: Any) -> None:
    names = config.architectures or [type(model).__name__]
    if type(model).__name__ not in names and not any(name.endswith(CAUSAL) for name in names):
        raise UserError(f"{path} holds no language model that writes text: its architecture is {names[0]}")


def _check_tokenizer(path: Path, tokenizer: Any, size: int) -> None:
    names = sorted({*OTHER_TOKENIZER_FILES, *type(tokenizer).vocab_files_names.values()})
    if not any((path / name).exists() for name in names):
        raise UserError(f"{path} holds no tokenizer: it has none of {', '.join(names)}")
    template = tokenizer.chat_template
    used = " ".join([str(template or ""), *map(str, tokenizer.special_tokens_map.values())])
    if unknown := find_unknown_tokens(tokenizer.get_vocab(), size, set(tokenizer.get_added_vocab()), used):
        raise UserError(
            f"{path} holds a tokenizer of another model: it has {len(tokenizer)} tokens, and the model {size}, without "
            f"{unknown[0]!r}"
        )


def _check_weights(path: Path) -> None:
    """Check that there are weights, in files that are complete; raises `UserError` otherwise."""
    files = find_weights(path)
    if not files:
        raise UserError(f"{path} holds no weights: it has no {' or '.join(WEIGHTS)}")
    from safetensors import SafetensorError, safe_open

    for file in files:
        if file.suffix == ".safetensors":
            try:
                with safe_open(file, "pt"):
                    pass
            except SafetensorError as error:
                raise UserError(f"{file} holds no weights, or only some of them: {error}") from error


def _has_images(config: Any) -> bool:
    from transformers import AutoModelForImageTextToText

    return type(config) in AutoModelForImageTextToText._model_mapping


def _check_node(path: Path, node: InferenceSettings, tokenizer: Any, config: Any, is_here: bool) -> None:
    if tokenizer.chat_template is None:
        raise UserError(f"{path} has no chat template: agents could not chat with it")
    length = config.get_text_config().max_position_embeddings
    if (node.max_model_len or 0) > length:
        raise UserError(f"max_model_len: {path} has a context of {length} tokens")
    if not is_here or node.vllm_command is not None or node.python_executable is not None:
        return  # another interpreter's vLLM
    if _has_images(config) and importlib.util.find_spec("torchvision") is None:
        raise UserError(
            f"{path} holds a model of the kind {config.model_type!r}, which reads images too: vLLM needs torchvision "
            "to serve it, even for text alone, and it is not installed here. The packages for GPUs have it. Beside a "
            "torch for CPUs, take a model for text"
        )
    _check_parsers(node)


def _check_parsers(node: InferenceSettings) -> None:
    if not (node.tool_parser or node.reasoning_parser):
        return
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager

    tools, thoughts = ToolParserManager.list_registered(), ReasoningParserManager.list_registered()
    for field, known in (("tool_parser", tools), ("reasoning_parser", thoughts)):
        name = getattr(node, field)
        if name is not None and name not in known:
            raise UserError(f"inference.{field}: vLLM has no {name!r}, but {', '.join(sorted(known))}")
