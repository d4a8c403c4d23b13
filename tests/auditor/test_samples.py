"""What can be recomputed of a record."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from lightningbus.auditor.samples import Sampling, build_samples, is_recomputable
from lightningbus.schemas.spans import VersionSpan
from tests.factories import batches, model_call

TWO = (
    VersionSpan(version=3, start=0, end=1, engine_id="n:1"),
    VersionSpan(version=4, start=1, end=3, engine_id="n:1"),
)


@pytest.mark.parametrize(
    ("sampling_params", "body"),
    [
        ({"presence_penalty": 0.5}, {}),
        ({"repetition_penalty": 1.2}, {}),
        ({"temperature": 0, "top_p": 0.9}, {}),
        ({}, {"logit_bias": {"5": 1}}),
        ({}, {"response_format": {"type": "json_object"}}),
        ({}, {"tool_choice": "required"}),
        ({}, {"min_tokens": 4}),
        ({"logit_bias": {"5": 1}}, {}),
    ],
)
def test_what_bends_the_distribution_is_left_out(sampling_params: dict[str, Any], body: dict[str, Any]) -> None:
    call = model_call(0, [1], [2], sampling_params=sampling_params)
    assert not is_recomputable(replace(call, request=json.dumps(body)))


@pytest.mark.parametrize("request_text", ['{"messages": [', "[1]", "3"])
def test_a_request_that_cannot_be_read_is_left_out(request_text: str) -> None:
    assert not is_recomputable(replace(model_call(0, [1], [2]), request=request_text))


def test_usual_calls_are_recomputed() -> None:
    for sampling_params in ({}, {"temperature": 0.7, "top_p": 0.9, "top_k": 40, "seed": 3}, {"temperature": 0.0}):
        assert is_recomputable(
            model_call(0, [1], [2], sampling_params=sampling_params, request='{"tool_choice":"auto"}')
        )


@pytest.mark.parametrize(
    ("kv_cache_on_swap", "expected"), [("recompute", [(3, 0, 1), (4, 1, 3)]), ("keep", [(3, 0, 1)])]
)
def test_each_version_of_a_call_is_a_sample(kv_cache_on_swap: Any, expected: list[tuple[int, int, int]]) -> None:
    (batch,) = batches("a", 0, parts=1)
    call = model_call(0, [5, 6], [7, 8, 9], sampling_params={"temperature": 0.5})
    spans = (replace(batch.spans[0], call=replace(call, weight_versions=TWO)),)
    samples = build_samples([replace(batch, spans=spans)], kv_cache_on_swap)
    assert [(sample.version, sample.start, sample.end) for sample in samples] == expected
    assert samples[0].prompt_ids.tolist() == [5, 6] and samples[0].response_ids.tolist() == [7, 8, 9]
    assert samples[0].sampling == Sampling(temperature=0.5)
    assert samples[0].engine_id == "n:1"


def test_tokens_of_an_unknown_engine_are_left_out() -> None:
    assert build_samples(batches("a", 0), "recompute") == []


@pytest.mark.parametrize("value", ["hot", [], None])
def test_settings_that_are_no_numbers_are_an_error(value: object) -> None:
    (batch,) = batches("a", 0, parts=1)
    call = replace(model_call(0, [5], [7, 8, 9], sampling_params={"temperature": value}), weight_versions=TWO)
    with pytest.raises(ValueError):
        build_samples([replace(batch, spans=(replace(batch.spans[0], call=call),))], "recompute")
