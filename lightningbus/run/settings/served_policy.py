"""Agreement of a learner with the nodes of its run file on what becomes of the policy's weights. Pure."""

from collections.abc import Iterator, Sequence

from lightningbus.inference.settings import InferenceSettings
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.schemas.weights.dtypes import ALIASES, AUTO, DTYPES, Dtype, can_hold, choose_engine_dtype


def follow_nodes(learner: LearnerSettings, nodes: Sequence[InferenceSettings]) -> LearnerSettings:
    """Return a learner's settings with what its nodes decide and the run file leaves open.

    These are ``weights.dtype``, ``weights.merge_adapters``, and a ratio against the learner's serving log-probabilities
    where an engine quantises the weights: the learner cannot compute as it does.
    """
    serving = [node for node in nodes if learner.model in node.models]
    weights, correction = learner.weights, learner.algorithm.rollout_correction
    if weights.dtype == AUTO and (dtype := _find_common(serving)) is not None:
        weights = weights.model_copy(update={"dtype": dtype})
    if serving and "merge_adapters" not in weights.model_fields_set:
        weights = weights.model_copy(update={"merge_adapters": any(node.lora is None for node in serving)})
    if any(node.is_quantized for node in serving) and "bypass_mode" not in correction.model_fields_set:
        correction = correction.model_copy(update={"bypass_mode": False})
    algorithm = learner.algorithm.model_copy(update={"rollout_correction": correction})
    return learner.model_copy(update={"weights": weights, "algorithm": algorithm})


def find_roundings(
    learner: LearnerSettings, nodes: Sequence[InferenceSettings], stored: Dtype, *, on_gpu: bool
) -> Iterator[str]:
    """Yield a sentence for each node that would round the versions of a learner further, and so serve another policy.

    ``learner``: as `follow_nodes` returns it; ``stored``: the number format of the model's files.
    """
    published = choose_engine_dtype(learner.weights.dtype, stored, on_gpu=on_gpu)
    if not learner.algorithm.rollout_correction.bypass_mode:
        return
    for node in nodes:
        served = choose_engine_dtype(node.engine_dtype, stored, on_gpu=on_gpu)
        if not can_hold(served, published):
            yield (
                f"inference.dtype: a node that computes in {served} rounds versions in {published}, so the policy that "
                f"samples is not the one that is trained. Give the node {published}, or learner.weights.dtype {served}"
            )


def _find_common(nodes: Sequence[InferenceSettings]) -> Dtype | None:
    """Return the format that all nodes can hold; None: it is not known without the model's files, or there is none."""
    named = [ALIASES.get(node.engine_dtype, node.engine_dtype) for node in nodes]
    formats = [dtype for dtype in DTYPES if dtype in named]
    if not formats or len(formats) < len(set(named)):
        return None
    return next((dtype for dtype in formats if all(can_hold(other, dtype) for other in formats)), None)
