"""A learner computes at what its nodes serve, however the run file says it, and a node that would round is refused."""

from pathlib import Path
from typing import Any

import pytest

from lightningbus.inference.settings import InferenceSettings
from lightningbus.learner.engine.number_formats import NumberFormats, resolve_formats
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.run.settings.served_policy import find_roundings, follow_nodes
from lightningbus.schemas.weights.dtypes import DTYPES, Dtype, can_hold


def node(**changes: Any) -> InferenceSettings:
    return InferenceSettings.model_validate({"model_path": Path("model"), **changes})


def learner(**changes: Any) -> LearnerSettings:
    return LearnerSettings.model_validate({"model_path": Path("model"), **changes})


@pytest.mark.parametrize(
    ("nodes", "settings", "dtype"),
    [
        ([{}], {}, "auto"),
        ([{"dtype": "float32"}], {}, "float32"),
        ([{"vllm_args": ["--dtype", "half"]}], {}, "float16"),
        ([{"dtype": "float32", "vllm_args": ["--dtype=bfloat16"]}], {}, "bfloat16"),
        ([{"dtype": "float32"}, {"dtype": "bfloat16"}], {}, "bfloat16"),
        ([{"dtype": "float16"}, {"dtype": "bfloat16"}], {}, "auto"),
        ([{"dtype": "float32"}, {}], {}, "auto"),
        ([{"dtype": "float32"}], {"weights": {"dtype": "bfloat16"}}, "bfloat16"),
        ([{"dtype": "float32", "model": "other"}], {}, "auto"),
    ],
)
def test_versions_have_the_format_that_all_nodes_hold(nodes: Any, settings: Any, dtype: str) -> None:
    followed = follow_nodes(learner(**settings), [node(**each) for each in nodes])
    assert followed.weights.dtype == dtype


def test_adapters_are_merged_where_a_node_merges_them() -> None:
    separate = {"lora": {"rank": 8}}
    assert follow_nodes(learner(), [node()]).weights.merge_adapters
    assert not follow_nodes(learner(), [node(**separate)]).weights.merge_adapters
    assert follow_nodes(learner(), [node(**separate), node()]).weights.merge_adapters
    assert follow_nodes(learner(weights={"merge_adapters": True}), [node(**separate)]).weights.merge_adapters


@pytest.mark.parametrize("arguments", [["--quantization", "fp8"], ["--quantization=fp8"], ["-q", "fp8"]])
def test_a_quantised_engine_is_corrected_for_unless_the_run_file_says_otherwise(arguments: list[str]) -> None:
    """No learner computes as such an engine does: the ratio is taken against the learner's log-probabilities."""
    quantized = node(vllm_args=arguments)
    assert follow_nodes(learner(), [node()]).algorithm.rollout_correction.bypass_mode
    assert not follow_nodes(learner(), [quantized]).algorithm.rollout_correction.bypass_mode
    kept = learner(algorithm={"rollout_correction": {"bypass_mode": True}})
    assert follow_nodes(kept, [quantized]).algorithm.rollout_correction.bypass_mode


@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.parametrize("stored", DTYPES)
@pytest.mark.parametrize("served", ["auto", *DTYPES])
def test_by_default_the_learner_computes_what_the_node_serves(served: str, stored: Dtype, on_gpu: bool) -> None:
    """Over all files, engines and devices: no node rounds a version, and no computation rounds the weights."""
    nodes = [node(dtype=served)]
    followed = follow_nodes(learner(), nodes)
    assert not list(find_roundings(followed, nodes, stored, on_gpu=on_gpu))
    for has_bfloat16 in (False, True):
        formats = resolve_formats(followed, stored, on_gpu, has_bfloat16)
        assert can_hold(formats.computation, formats.weights)
        assert formats.computation == (
            formats.weights if on_gpu or (has_bfloat16 and formats.weights == "bfloat16") else "float32"
        )


def test_a_node_that_rounds_versions_is_refused() -> None:
    nodes = [node(dtype="bfloat16")]
    followed = follow_nodes(learner(weights={"dtype": "float32"}), nodes)
    (sentence,) = find_roundings(followed, nodes, "bfloat16", on_gpu=False)
    assert sentence.startswith("inference.dtype: a node that computes in bfloat16 rounds versions in float32")
    decoupled = {"algorithm": {"rollout_correction": {"bypass_mode": False}}}
    assert not list(find_roundings(learner(weights={"dtype": "float32"}, **decoupled), nodes, "bfloat16", on_gpu=False))


def test_a_computation_that_rounds_the_weights_is_refused() -> None:
    with pytest.raises(ValueError, match=r"engine\.dtype: bfloat16 rounds weights that engines serve in float16"):
        resolve_formats(learner(engine={"dtype": "bfloat16"}), "float16", on_gpu=True, has_bfloat16=True)
    decoupled = learner(engine={"dtype": "bfloat16"}, algorithm={"rollout_correction": {"bypass_mode": False}})
    formats = resolve_formats(decoupled, "float16", on_gpu=True, has_bfloat16=True)
    assert formats == NumberFormats("float16", "bfloat16", "float16") and not formats.is_exact
