"""The mapping ``verl``: each field of verl's dataclasses is passed on, or refused with a reason."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest

from lightningbus.learner.engine import cpu_platform
from lightningbus.learner.engine.engines import make_engine
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.learner.settings.verl_fields import check_verl, field_types, read_fields
from lightningbus.learner.settings.verl_sections import OPTIM, POLICY_LOSS, SECTIONS, Section
from lightningbus.learner.training.loss import actor_config
from lightningbus.learner.training.verl_trainer import VerlTrainer
from tests.learner.conftest import settings_for

SAMPLES = {
    "betas": [0.8, 0.85],
    "mixed_precision": {"buffer_dtype": "bfloat16"},
    "external_lib": "json",
    "use_shm": False,
}
"""Values of fields whose type does not tell one, or whose work would stay on this machine."""


@pytest.fixture(scope="module", autouse=True)
def _platform() -> None:
    cpu_platform.select_platform()


def _fields() -> Iterator[tuple[Section, str]]:
    return ((section, key) for section in SECTIONS for key in field_types(section.config))


def _sample(key: str, hint: Any) -> Any:
    """A value of the type, other than each default of verl's."""
    if key in SAMPLES:
        return SAMPLES[key]
    kinds = [kind for kind in (get_args(hint) or (hint,)) if kind is not type(None)]
    if dict in (hint, get_origin(hint), get_origin(kinds[0]), kinds[0]):
        return {"some": "value"}
    return {bool: True, int: 7, float: 7.5, str: "text"}.get(kinds[0], "text")


def _settings(model_path: Path, section: Section, fields: dict[str, Any]) -> LearnerSettings:
    if section is POLICY_LOSS:
        return settings_for(model_path, actor={"policy_loss_options": fields})
    return settings_for(model_path, lora={"lora_rank": 2}, verl={section.where.removeprefix("verl."): fields})


def _configurations(settings: LearnerSettings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """verl's dataclasses, as its engines and losses get them."""
    from verl.workers.engine import EngineRegistry

    seen: dict[str, Any] = {}

    def look(**named: Any) -> Any:
        seen.update(named)
        raise InterruptedError

    monkeypatch.setattr(EngineRegistry, "new", look)
    actor = actor_config(settings)
    yield from (actor, actor.policy_loss)
    for optim, kind in ((settings.actor.optim, "language_model"), (settings.critic.optim, "value_model")):
        with pytest.raises(InterruptedError):
            make_engine(settings, "cpu", optim, kind)  # type: ignore[arg-type]
        yield from (seen["model_config"], seen["engine_config"], seen["optimizer_config"])


def test_each_field_of_verl_arrives_or_is_refused_with_a_reason(
    model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for section in SECTIONS:
        hints = field_types(section.config)
        free = [key for key in hints if section.find_refusal(key) is None]
        assert free, section.where
        values = {key: _sample(key, section.types.get(key, hints[key])) for key in free}
        settings = _settings(model_path, section, values)
        check_verl(settings)
        configs = [each for each in _configurations(settings, monkeypatch) if type(each).__name__ == section.config]
        for key, value in values.items():
            arrived = [_plain(each[key]) for each in configs]
            assert any(_contains(each, value) for each in arrived), f"{section.where}.{key}: {arrived}"
        for key in set(hints) - set(free):
            with pytest.raises(ValueError, match=rf"{section.where}\.{key} cannot be set: \w+") as refused:
                read_fields(section, {key: None})
            assert len(str(refused.value).partition(": ")[2]) > 10


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _contains(actual: Any, wanted: Any) -> bool:
    if isinstance(wanted, dict):
        return isinstance(actual, dict) and wanted.items() <= actual.items()
    return bool(actual == wanted)


def test_reasons_are_of_fields_that_verl_has_and_name_settings_that_exist() -> None:
    known = {*_setting_names(LearnerSettings), *(f"{section.where}.{key}" for section, key in _fields())}
    for section in SECTIONS:
        renamed = {key for key, setting in section.named.items() if setting.rpartition(".")[2] != key}
        keys = {key.partition(".")[0] for key in (*section.refused, *section.types, *renamed)}
        assert keys <= set(field_types(section.config)), section.where
        assert set(section.named.values()) <= known, section.where


def _setting_names(model: Any, prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield f"{prefix}{name}"
        if hasattr(field.annotation, "model_fields"):
            yield from _setting_names(field.annotation, f"{prefix}{name}.")


@pytest.mark.parametrize(
    ("verl", "sentence"),
    [
        ({"engine": {"reshard": False}}, r"verl\.engine\.reshard: .* nearest: reshard_after_forward, "),
        ({"engine": {"fsdp_size": 2}}, r"it has a setting of its own, engine\.fsdp_size"),
        ({"engine": {"mixed_precision": {"param_dtype": "float16"}}}, r"mixed_precision\.param_dtype .* engine\.dtype"),
        ({"engine": {"mixed_precision": {"buffer_dtype": "fp8"}}}, r"buffer_dtype: Input should be .*, not 'fp8'"),
        ({"engine": {"forward_prefetch": "often"}}, r"verl\.engine\.forward_prefetch: .* boolean.*, not 'often'"),
        ({"model": {"override_config": {"attn_implementation": "sdpa"}}}, r"engine\.attn_implementation"),
        ({"model": {"exclude_modules": "lm_head"}}, r"needs lora\.lora_rank above 0"),
        ({"actor": {"clip_ratio_c": 1.0}}, r"verl\.actor\.clip_ratio_c: Input should be greater than 1"),
        ({"actor": {"shuffle": True}}, r"verl\.actor\.shuffle cannot be set: the learner does not use it"),
        ({"critic_optim": {"lr": 1.0}}, r"critic\.optim\.lr"),
    ],
)
def test_a_learner_refuses_fields_before_it_loads_a_model(
    start: Callable[..., VerlTrainer], verl: Any, sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        start(verl=verl)


def test_settings_are_read_where_verl_is_not_installed(model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "verl", None)
    settings = settings_for(model_path, verl={"optim": {"optimizer": "AdamW8bit", "betas": [0.9, 0.95]}})
    assert settings.verl.optimizer.name == "AdamW8bit"
    assert LearnerSettings.model_validate_json(settings.model_dump_json()) == settings
    with pytest.raises(ValueError, match="optimiser"):
        settings_for(model_path, verl={"optimiser": {}})


def test_a_list_becomes_the_tuple_that_verl_has() -> None:
    assert read_fields(OPTIM, {"betas": [0.9, 0.95]}) == {"betas": (0.9, 0.95)}
