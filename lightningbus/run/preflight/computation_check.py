"""A dry run's check that the learner computes its model as transformers does, as it checks when it starts."""

import importlib.util
from collections.abc import Iterator, Sequence

from lightningbus.inference.settings import InferenceSettings
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.run.errors import UserError
from lightningbus.run.preflight.engine_dry_run import check_engine
from lightningbus.run.preflight.learner_checks import find_device, silence_verl
from lightningbus.run.preflight.memory_check import Target


def check_computation(
    learner: LearnerSettings, target: Target, nodes: Sequence[InferenceSettings] | None = ()
) -> Iterator[str]:
    """Load the model and compute it in the ways that the settings allow; yield the one that is right.

    The engine of the first of ``nodes`` that serves the model is compared too; None: that is left out on request.
    Nothing is loaded for a learner of another machine or environment. Raises `UserError` if no way is right, or the
    engine is not.
    """
    device, is_here = find_device(target)
    if not (is_here and learner.engine.check_model and learner.python_executable is None):
        return
    if importlib.util.find_spec("verl") is None:
        return
    with silence_verl():
        from transformers.utils.logging import disable_progress_bar

        from lightningbus.learner.engine.cpu_platform import select_platform
        from lightningbus.learner.model_check.check import ModelCheckError, check_model

        select_platform()
        disable_progress_bar()  # type: ignore[no-untyped-call]
        try:
            check = check_model(learner, device)
        except ModelCheckError as error:
            raise UserError(f"{learner.model}: {error}") from error
    if check.log_probs is not None:
        engine = check.settings.engine
        rows = "packed" if engine.use_remove_padding else "padded"
        yield f"{learner.model}: attention {engine.attn_implementation} on {rows} rows computes it as transformers does"
        if nodes is None:
            yield f"{learner.model}: the engine was left out (--no-engine): the first node checks it in the run"
        else:
            yield from check_engine(learner.model, check, nodes)
