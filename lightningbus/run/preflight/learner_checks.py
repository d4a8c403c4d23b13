"""Checks, before a learner starts, everything that it would refuse: names, own functions, adapters, the engine."""

import copy
import importlib.util
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from lightningbus.inference.settings import InferenceSettings
from lightningbus.learner.batching.credit import resolve_credit_fn
from lightningbus.learner.demonstration_files import read_demonstrations
from lightningbus.learner.engine.number_formats import choose_formats
from lightningbus.learner.engine.verl_checks import check_device, check_optimizers, check_ranks
from lightningbus.learner.preference_files import read_preferences
from lightningbus.learner.selection.task_sets import list_credits
from lightningbus.learner.settings.import_path import is_import_path, resolve_function
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.run.errors import UserError
from lightningbus.run.preflight.memory_check import Target
from lightningbus.run.settings.served_policy import find_roundings
from lightningbus.schemas.text import shorten_line
from lightningbus.schemas.weights.dtypes import read_dtype


def check_functions(learner: LearnerSettings) -> None:
    """Check functions and estimators that are settings by name, which takes no model; raises `UserError`."""
    _check(learner, resolve_names, learner)


def check_learner(learner: LearnerSettings, target: Target) -> Iterator[str]:
    """Yield warnings about what cannot be checked here; raises `UserError` at the first setting the learner refuses.

    Packages are checked here unless the learner starts in another environment, or on other machines.
    """
    if learner.supervised is not None and learner.python_executable is None:
        _check(learner, read_demonstrations, learner)
    if learner.preferences is not None and learner.python_executable is None:
        _check(learner, read_preferences, learner)
    device, is_here = find_device(target)
    is_here = is_here and learner.python_executable is None
    _check(learner, check_ranks, learner, device, target.num_ranks, knows_packages=is_here)
    if is_here:
        _check(learner, check_device, learner.engine, device)
        _check(learner, check_optimizers, learner)
    else:
        yield from _check_optimizers_elsewhere(learner)


def check_formats(learner: LearnerSettings, nodes: Sequence[InferenceSettings], target: Target) -> None:
    """Check that nodes serve the weights that the learner computes at; raises `UserError` otherwise."""
    device, _ = find_device(target)
    _check(learner, choose_formats, learner, device)
    serving = [node for node in nodes if learner.model in node.models]
    stored = read_dtype(learner.model_path)
    if sentence := next(find_roundings(learner, serving, stored, on_gpu=device == "cuda"), None):
        raise UserError(f"{learner.model}: {sentence}")


def check_adapters(learner: LearnerSettings, model: Any) -> None:
    """Check that modules of a model on the meta device may have the adapters; raises `UserError` otherwise."""
    if not learner.lora.lora_rank or importlib.util.find_spec("peft") is None:
        return
    import torch
    from peft import get_peft_model

    from lightningbus.learner.engine.adapters import check_targets, make_lora_config

    try:
        with torch.device("meta"):
            adapted = get_peft_model(copy.deepcopy(model), make_lora_config(learner, model.config))
    except ValueError as error:
        raise UserError(f"{learner.model}: lora.target_modules: {shorten_line(str(error), 200)}") from error
    _check(learner, check_targets, adapted)


def resolve_names(learner: LearnerSettings) -> None:
    """Look up credit method, sampler, estimator, loss and fields of verl as the learner does; raises ValueError.

    Own functions of a learner in another environment cannot be imported here, and without verl no name is known.
    """
    is_elsewhere = learner.python_executable is not None
    for credit in list_credits(learner):
        if not (is_elsewhere and is_import_path(credit.method)):
            resolve_credit_fn(credit.method)
    if not is_elsewhere and is_import_path(learner.task_selection.sampler):
        resolve_function(learner.task_selection.sampler, "task_selection.sampler")
    if importlib.util.find_spec("verl") is None:
        return
    with silence_verl():
        from lightningbus.learner.engine.cpu_platform import select_platform
        from lightningbus.learner.settings.verl_fields import check_verl
        from lightningbus.learner.training.estimators import make_estimator
        from lightningbus.learner.training.loss import actor_config

        select_platform()
        check_verl(learner)
        if not (is_elsewhere and is_import_path(learner.algorithm.adv_estimator)):
            make_estimator(learner.algorithm)
        if not (is_elsewhere and is_import_path(learner.actor.policy_loss)):
            actor_config(learner)


@contextmanager
def silence_verl() -> Iterator[None]:
    """Silence verl's log while it is imported, which reports each engine that is not installed."""
    before = logging.root.manager.disable
    logging.disable(logging.INFO)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _check_optimizers_elsewhere(learner: LearnerSettings) -> Iterator[str]:
    """Warn of an optimiser whose package is not installed here; torch's own need no check."""
    for setting, optimizer in learner.verl.optimizers.items():
        package = optimizer.module.partition(".")[0]
        if importlib.util.find_spec(package) is None:
            setting = f"{setting}.optimizer_impl"
            yield f"warning: {learner.model}: {setting}: {package} is not installed here; the learner needs it"
            return
    _check(learner, check_optimizers, learner)


def find_device(target: Target) -> tuple[str, bool]:
    """Return the learner's device, and whether this machine has it."""
    import torch

    if torch.cuda.is_available():
        return "cuda", True
    return ("cuda", False) if target.gpu_memory_gib is not None else ("cpu", True)


def _check(learner: LearnerSettings, look: Callable[..., object], *arguments: Any, **named: Any) -> None:
    try:
        look(*arguments, **named)
    except ValueError as error:
        raise UserError(f"{learner.model}: {error}") from error
