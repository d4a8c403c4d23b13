"""What is wrong with a file of settings: everything at once, each with the nearest right key."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import ValidationError

from lightningbus.auditor.settings import AuditorSettings
from lightningbus.run.errors import UserError
from lightningbus.run.preflight.job_checks import parse_job
from lightningbus.run.processes.stack import child_specs
from lightningbus.run.settings.run_file import PATTERN_ERRORS, RunSettings, validate_settings
from lightningbus.store.settings import StoreSettings


def problems_of(fields: dict[str, Any]) -> list[str]:
    """The lines of the error that a run file with these fields ends in."""
    with pytest.raises(UserError) as error:
        parse_job(validate_settings(RunSettings, fields, "run.yaml"), "run.yaml")
    return str(error.value).splitlines()


def test_all_wrong_settings_of_a_file_are_named_at_once() -> None:
    learner = {"model_path": "m", "max_stesp": 1, "group_size": 0}
    assert problems_of({"learner": learner, "runners": [{"entrypont": "a:b"}]}) == [
        "run.yaml: 3 settings are wrong",
        "  learner.group_size: Input should be greater than or equal to 1",
        "  learner.max_stesp: no such setting; did you mean 'max_steps'?",
        "  runners.0.entrypont: no such setting; did you mean 'entrypoint'?",
    ]


def test_all_that_does_not_fit_together_is_named_at_once() -> None:
    fields: dict[str, Any] = {
        "store": {},
        "inference": [{"model_path": "m", "model": "a"}],
        "learner": {"model_path": "m", "tasks": "t", "model": "b", "agent": "y"},
        "runners": [{"entrypoint": "a:b"}],
        "eval": {"tasks": "t", "agent": "x"},
    }
    assert problems_of(fields) == [
        "run.yaml: 3 settings are wrong",
        "  learner.agent: no runner here takes tasks of 'y'",
        "  eval.agent: no runner here takes tasks of 'x'",
        "  learner.model: no inference node here serves 'b'",
    ]
    fields["inference"][0]["model"] = "b"
    fields["runners"].append({"entrypoint": "a:b", "agent_name": "y"})
    assert problems_of(fields) == ["run.yaml: eval.agent: no runner here takes tasks of 'x'"]
    fields["eval"]["agent"] = "y"
    fields["inference"][0]["frozen"] = True
    assert problems_of(fields) == [
        "run.yaml: inference.frozen: a frozen node would ignore what the learner publishes of 'b'"
    ]
    fields["inference"] = [{"model_path": "m", "lora": {"rank": 4, "models": ["a", "b"]}}]
    fields["learner"]["lora"] = {"lora_rank": 8}
    assert problems_of(fields) == ["run.yaml: inference.lora.rank: the learner's adapters are of rank 8"]


def test_a_role_may_be_answered_by_a_node_or_by_an_endpoint_of_a_runner() -> None:
    endpoint = {"judge": {"url": "https://api.example.com/v1"}}
    fields = {
        "inference": [{"model_path": "m"}],
        "runners": [{"entrypoint": "a:b", "endpoints": endpoint}],
        "role_models": {"checker": "judge"},
    }
    assert RunSettings.model_validate(fields).role_models == {"checker": "judge"}
    with pytest.raises(ValidationError, match="no learner, inference node or endpoint here has model 'jugde' of role"):
        RunSettings.model_validate(fields | {"role_models": {"checker": "jugde"}})


def test_a_node_gives_as_many_log_probabilities_as_a_teacher_on_it_is_asked_for() -> None:
    def arguments(top_k: int, *flags: str) -> list[str]:
        node = {"model_path": "m", "model": "large", "frozen": True, "vllm_args": [*flags]}
        teachers = [{"name": "a", "model": "large", "roles": ["x"], "top_k": top_k}, {"name": "b", "url": "u"}]
        fields = {"inference": [{"model_path": "m"}, node], "learner": {"model_path": "m", "teacher": teachers}}
        settings = RunSettings.model_validate(fields)
        assert settings.inference[0].vllm_args == []
        return settings.inference[1].vllm_args

    assert (arguments(0), arguments(20), arguments(21)) == ([], [], ["--max-logprobs", "21"])
    for flags in (["--max-logprobs=50"], ["--max_logprobs", "-1"]):
        assert arguments(50, *flags) == flags
    with pytest.raises(ValidationError, match=r"--max-logprobs 8 is below the 9 of teacher\.top_k"):
        arguments(9, "--max-logprobs", "8")


def test_an_auditor_recomputes_as_the_nodes_of_its_model_compute() -> None:
    node, frozen = {"model_path": "m", "dtype": "float32"}, {"model_path": "j", "model": "judge", "frozen": True}
    fields = {"inference": [node, frozen], "auditor": {"model_path": "j", "model": "judge"}}
    (*_, auditor) = child_specs(RunSettings.model_validate(fields), Path("run"))
    assert isinstance(auditor.settings, AuditorSettings)
    assert (auditor.settings.frozen, auditor.settings.engine_dtype) == (True, "auto")


def test_a_run_cannot_have_the_name_that_stands_for_the_newest() -> None:
    with pytest.raises(ValidationError, match="'latest' stands for the newest run: choose another name"):
        RunSettings(name="latest")


def test_every_form_that_a_setting_must_have_is_explained() -> None:
    def collect_patterns(schema: object) -> Iterator[str]:
        for name, inner in schema.items() if isinstance(schema, dict) else enumerate(cast("list[object]", schema)):
            if name == "pattern" and isinstance(inner, str):
                yield inner
            elif isinstance(inner, dict | list):
                yield from collect_patterns(inner)

    assert {*collect_patterns(RunSettings.model_json_schema())} - PATTERN_ERRORS.keys() == set()


def test_an_address_of_clickhouses_other_port_is_told_the_form_it_should_have() -> None:
    with pytest.raises(UserError, match="url: it is not of the form http://host:port or https://host:port"):
        validate_settings(StoreSettings, {"url": "clickhouse://x:9000"}, "--url")
