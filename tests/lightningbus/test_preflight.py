"""What a dry run looks at before it runs the agent: the trial task, the learner's names, the model's folder."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file
from transformers import Qwen2Config, ViTConfig

from lightningbus.inference.settings import InferenceSettings
from lightningbus.run.errors import UserError
from lightningbus.run.preflight.computation_check import check_computation
from lightningbus.run.preflight.job_checks import TrainJob, check_alone, list_trials, parse_job, run_checks
from lightningbus.run.preflight.learner_checks import check_learner
from lightningbus.run.preflight.memory_check import Target
from lightningbus.run.preflight.model_checks import check_model, find_unknown_tokens, make_empty_model
from lightningbus.run.preflight.setting_conflicts import find_oddities
from lightningbus.run.preflight.trial_rollout import WantedReward
from lightningbus.run.settings.run_file import RunSettings, validate_settings
from lightningbus.runners.protocol.request import SAMPLING_FIELDS
from tests.families.families import FAMILIES, save_tiny_model
from tests.learner.conftest import settings_for, tiny_tokenizer, without_tensors

pytestmark = pytest.mark.integration

LEARNERS = [
    {"model_path": "m", "model": "writer", "tasks": "tasks.jsonl"},
    {"model_path": "m", "model": "checker", "tasks": "tasks.jsonl", "reward": "checker"},
]


def run_of(**changes: Any) -> RunSettings:
    """A run of two models beside a frozen one; ``changes`` are of its file."""
    fields: dict[str, Any] = {
        "store": {},
        "inference": [{"model_path": "m", "model": name} for name in ("writer", "checker")]
        + [{"model_path": "m", "model": "judge", "frozen": True}],
        "learners": LEARNERS,
        "role_models": {"writer": "writer", "checker": "checker"},
        "runners": [{"entrypoint": "agent:solve"}],
        "eval": {"tasks": "tasks.jsonl"},
        **changes,
    }
    return validate_settings(RunSettings, fields, "run.yaml")


def job_of(settings: RunSettings) -> TrainJob:
    return parse_job(settings, "run.yaml")


def test_the_trial_task_is_published_as_the_learner_publishes_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tasks.jsonl").write_text(json.dumps({"id": "a", "input": 1}) + "\n")
    suite = {"name": "hard", "tasks": "tasks.jsonl", "reward": "exact"}
    settings = run_of(eval={"tasks": "tasks.jsonl", "suites": [suite]})
    (trial,) = list_trials(settings, job_of(settings), "default")
    assert (trial.model, trial.role_models) == ("writer", {"writer": "writer", "checker": "checker"})
    assert set(trial.served_models) == {"writer", "checker", "judge"}
    assert trial.wanted_rewards == [
        WantedReward("learners.1.reward", "'checker' is trained on", "checker"),
        WantedReward("eval.suites.0.reward", "suite 'hard' counts", "exact"),
    ]


def single_run(node: dict[str, Any], learner: dict[str, Any]) -> RunSettings:
    return run_of(
        learners=[],
        role_models={},
        inference=[{"model_path": "m", **node}],
        learner={"model_path": "m", "tasks": "tasks.jsonl", **learner},
    )


def test_names_are_checked_before_a_model_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tasks.jsonl").write_text(json.dumps({"id": "a", "input": 1}) + "\n")
    settings = single_run({}, {"algorithm": {"adv_estimator": "nope"}})
    with pytest.raises(UserError, match=r"adv_estimator: 'nope' is not known"):  # there is no model at all
        list(run_checks(settings, job_of(settings), Target(gpu_memory_gib=80.0)))


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_answers_that_leave_no_room_for_a_prompt_are_refused(name: str) -> None:
    settings = single_run({"max_model_len": 512}, {"sampling_params": {name: 512}})
    with pytest.raises(UserError, match=f"sampling_params.{name}: 512 leaves no room for a prompt: .* is 512"):
        job_of(settings)
    job_of(single_run({"max_model_len": 512}, {"sampling_params": {name: 511}}))
    job_of(single_run({}, {"sampling_params": {name: 4096}}))


@pytest.mark.parametrize(
    ("name", "near"),
    [("temprature", "temperature"), ("topp", "top_p"), ("max_completion_token", "max_completion_tokens")],
)
def test_a_misspelt_field_of_sampling_is_refused(name: str, near: str) -> None:
    with pytest.raises(UserError, match=rf"sampling_params.{name}: vLLM knows no such field; did you mean '{near}'"):
        job_of(single_run({}, {"sampling_params": {name: 1}}))


def test_a_node_of_several_adapters_refuses_a_learner_without() -> None:
    nodes = {"lora": {"rank": 8, "models": ["policy", "other"]}}
    with pytest.raises(UserError, match=r"inference.lora.models: 'policy' is trained in whole"):
        job_of(single_run(nodes, {}))
    job_of(single_run(nodes, {"lora": {"lora_rank": 8}}))


@pytest.mark.parametrize(
    ("node", "learner", "oddity"),
    [
        (
            {},
            {"sampling_params": {"field_of_a_plugin": 1.0}},
            "learner.sampling_params.field_of_a_plugin: vLLM knows no such field",
        ),
        (
            {"max_model_len": 512},
            {"algorithm": {"overlong_buffer": {"max_response_length": 600, "len": 8}}},
            "learner.algorithm.overlong_buffer.max_response_length: no answer has 600 tokens: max_model_len of a node "
            "is 512",
        ),
        (
            {"lora": {"rank": 8}},
            {},
            "inference.lora: 'policy' is trained in whole (lora.lora_rank: 0): there are no adapters to hold",
        ),
    ],
)
def test_what_has_no_effect_is_a_warning(node: dict[str, Any], learner: dict[str, Any], oddity: str) -> None:
    settings = single_run(node, learner)
    assert list(find_oddities(settings, job_of(settings).learner)) == [oddity]


def test_the_fields_of_sampling_are_vllms() -> None:
    protocol = pytest.importorskip("vllm.entrypoints.openai.chat_completion.protocol")
    completion = pytest.importorskip("vllm.entrypoints.openai.completion.protocol")
    known = {*protocol.ChatCompletionRequest.model_fields, *completion.CompletionRequest.model_fields}
    assert {name for name in SAMPLING_FIELDS - known if not name.startswith("guided_")} == set()


@pytest.fixture(scope="module")
def whole_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that lacks nothing but the tensors."""
    path = tmp_path_factory.mktemp("model")
    tiny_tokenizer(path)
    sizes: dict[str, Any] = {"hidden_size": 28, "num_attention_heads": 28, "num_key_value_heads": 28}
    Qwen2Config(vocab_size=320, num_hidden_layers=1, intermediate_size=8, **sizes).save_pretrained(path)
    without_tensors(path)
    return path


@pytest.mark.parametrize(
    ("ranks", "changes", "sentence"),
    [
        (1, {"algorithm": {"adv_estimator": "nope"}}, "policy: adv_estimator: 'nope' is not known; known: gae, "),
        (1, {"algorithm": {"adv_estimator": "absent:f"}}, "adv_estimator: 'absent:f' cannot be imported: No module"),
        (1, {"actor": {"policy_loss": "nope"}}, "policy: policy_loss: 'nope' is not known; known: "),
        (1, {"actor": {"policy_loss": "absent:f"}}, "policy_loss: 'absent:f' cannot be imported: No module"),
        (1, {"credit": "nope"}, "policy: credit: 'nope' is not known; known: identical, "),
        (1, {"lora": {"lora_rank": 8, "target_modules": ["nope"]}}, "policy: lora.target_modules: Target modules"),
        (8, {"engine": {"ulysses_sequence_parallel_size": 8}}, "(8) must divide the model's attention heads (28)"),
        (8, {"engine": {"ulysses_sequence_parallel_size": 3}}, "(3) must divide the number of ranks (8)"),
        (8, {"engine": {"fsdp_size": 3}}, "engine.fsdp_size (3) must divide the number of ranks (8)"),
        (1, {"verl": {"optim": {"optimizer": "Adamm"}}}, "verl.optim.optimizer: torch.optim has no 'Adamm'"),
        (
            1,
            {"verl": {"optim": {"optimizer": "AdamW8bit"}}},
            "has no 'AdamW8bit'; set verl.optim.optimizer_impl to torchao",
        ),
        (
            1,
            {"verl": {"engine": {"wrap_polcy": {}}}},
            "policy: verl.engine.wrap_polcy: FSDPEngineConfig of verl has no such field; nearest: wrap_policy, ",
        ),
        (1, {"verl": {"engine": {"strategy": "megatron"}}}, "policy: verl.engine.strategy cannot be set: the learner"),
        (1, {"verl": {"optim": {"betas": 0.9}}}, "policy: verl.optim.betas: Input should be a valid tuple, not 0.9"),
    ],
)
def test_what_the_learner_would_refuse_is_refused(
    whole_model: Path, ranks: int, changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UserError) as refused:
        list(check_alone(settings_for(whole_model, **changes), Target(ranks)))
    assert sentence in str(refused.value)


def test_what_only_another_machine_can_know_is_left_to_it(whole_model: Path) -> None:
    optim = {"optimizer": "AdamW8bit", "optimizer_impl": "absent.optim"}
    flash = {"attn_implementation": "flash_attention_2", "param_offload": True}
    elsewhere = settings_for(
        whole_model,
        python_executable="python9",
        credit="absent:f",
        actor={"policy_loss": "absent:f"},
        verl={"optim": optim},
    )
    planned = settings_for(whole_model, engine=flash, verl={"optim": optim})
    for learner, target in ((elsewhere, Target()), (planned, Target(gpu_memory_gib=80))):
        (warning,) = check_learner(learner, target)
        assert warning.startswith("warning: policy: verl.optim.optimizer_impl: absent is not installed here")


def test_a_plan_for_other_machines_needs_no_weights(whole_model: Path, tmp_path: Path) -> None:
    shutil.copy(whole_model / "config.json", tmp_path)
    warning, *plan = check_alone(settings_for(tmp_path), Target(gpu_memory_gib=80, gpu_tflops=100))
    assert warning == f"warning: {tmp_path} holds no weights: the plan is of its config.json alone"
    assert any("fits in 80.0 GiB" in line for line in plan)
    with pytest.raises(UserError, match=r"lora\.target_modules"):
        list(check_alone(settings_for(tmp_path, lora={"lora_rank": 8, "target_modules": ["nope"]}), Target(1, 80)))
    with pytest.raises(UserError, match="holds no"):
        list(check_alone(settings_for(tmp_path), Target()))


def test_adapters_of_two_learners_are_looked_for_in_the_same_model(whole_model: Path) -> None:
    learner = settings_for(whole_model, lora={"lora_rank": 8})
    (line,) = check_model(whole_model, (), [learner, learner])
    assert ": qwen2, 1 layers, " in line


def remove_tokenizer(folder: Path) -> None:
    for file in folder.glob("*token*"):
        file.unlink()


def remove_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def cut_weights(folder: Path) -> None:
    save_file({}, folder / "model.safetensors", {"name": "long enough to be cut"})
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:20])


def shrink_vocabulary(folder: Path) -> None:
    change_config(folder, vocab_size=64)


def make_classifier(folder: Path) -> None:
    change_config(folder, architectures=["Qwen2ForSequenceClassification"])


def change_config(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (remove_tokenizer, " holds no tokenizer: it has none of "),
        (remove_weights, " holds no weights: it has no *.safetensors or *.bin"),
        (cut_weights, "model.safetensors holds no weights, or only some of them: "),
        (shrink_vocabulary, " tokens, and the model 64, without "),
        (make_classifier, " holds no language model that writes text: its architecture is Qwen2ForSequenceC"),
    ],
)
def test_a_folder_that_cannot_be_trained_is_refused(
    whole_model: Path, tmp_path: Path, spoil: Callable[[Path], None], sentence: str
) -> None:
    folder = shutil.copytree(whole_model, tmp_path / "model")
    spoil(folder)
    with pytest.raises(UserError) as refused:
        list(check_model(folder, (), [settings_for(folder)]))
    assert sentence in str(refused.value)


def test_a_node_gets_its_weights_from_the_bus_unless_it_is_frozen(whole_model: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(whole_model, tmp_path / "model")
    remove_weights(folder)
    (line,) = check_model(folder, [InferenceSettings(model_path=folder)], ())
    assert "qwen2" in line
    with pytest.raises(UserError, match="holds no weights"):
        list(check_model(folder, [InferenceSettings(model_path=folder, frozen=True)], ()))


def test_tokens_beyond_the_vocabulary_are_missing_where_they_are_used() -> None:
    vocabulary = {"a": 0, "b": 1, "<image>": 2, "<end>": 3}
    assert find_unknown_tokens(vocabulary, 4, set(), "") == []
    assert find_unknown_tokens(vocabulary, 2, {"<image>", "<end>"}, "{{ text }}<end>") == ["<end>"]
    assert find_unknown_tokens(vocabulary, 1, {"<image>", "<end>"}, "") == ["b"]


def test_a_dry_run_says_how_a_model_is_computed_right_or_refuses_the_settings(tmp_path: Path) -> None:
    model = save_tiny_model(FAMILIES["gemma2"], tmp_path / "model")
    tiny_tokenizer(model)
    learner = settings_for(model, checkpoint_dir=tmp_path, engine={"check_model": True})
    (sentence,) = check_computation(learner, Target())
    assert sentence == "policy: attention eager on padded rows computes it as transformers does"
    wrong = settings_for(model, checkpoint_dir=tmp_path, engine={"check_model": True, "attn_implementation": "sdpa"})
    with pytest.raises(UserError, match=r"policy: this model would be trained wrong.*set engine.attn_implementation"):
        list(check_computation(wrong, Target()))
    elsewhere = learner.model_copy(update={"python_executable": Path("/usr/bin/python3")})
    assert not [*check_computation(elsewhere, Target()), *check_computation(learner, Target(gpu_memory_gib=80.0))]


def test_a_model_for_images_too_is_a_model_and_one_that_writes_no_text_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, model = make_empty_model(save_tiny_model(FAMILIES["qwen3_vl"], tmp_path / "vision"))
    assert config.model_type == "qwen3_vl" and "ForConditionalGeneration" in type(model).__name__
    tiny_tokenizer(tmp_path / "vision")
    monkeypatch.setitem(sys.modules, "torchvision", None)  # it is not installed
    node = InferenceSettings(model_path=tmp_path / "vision")
    with pytest.raises(UserError, match="'qwen3_vl', which reads images too: vLLM needs torchvision to serve it"):
        list(check_model(tmp_path / "vision", [node], ()))
    assert list(check_model(tmp_path / "vision", [node], (), is_here=False)), "another machine may have it"
    (tmp_path / "other").mkdir()
    ViTConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2).save_pretrained(tmp_path / "other")
    with pytest.raises(UserError, match="a model of the kind 'vit', of which transformers has no language model"):
        make_empty_model(tmp_path / "other")
