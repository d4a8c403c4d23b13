"""Settings in the signatures and the help of a running Python."""

import inspect
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import lightningbus as lb
import lightningbus.settings
from lightningbus.api.settings import EvaluateSettings, TrainSettings

FUNCTIONS = [
    *((function, TrainSettings) for function in (lb.train, lb.atrain, lb.atrain_steps)),
    *((function, EvaluateSettings) for function in (lb.evaluate, lb.aevaluate, lb.serve, lb.aserve)),
]
CLASSES = [
    kind for name in lightningbus.settings.__all__ if inspect.isclass(kind := getattr(lightningbus.settings, name))
]


@pytest.mark.parametrize(("function", "kind"), FUNCTIONS, ids=lambda each: getattr(each, "__name__", ""))
def test_options_are_parameters_with_a_meaning(function: Any, kind: type) -> None:
    parameters = inspect.signature(function).parameters
    assert not any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
    assert set(kind.__annotations__) <= set(parameters)
    lines = inspect.getdoc(function).splitlines()  # type: ignore[union-attr]
    meanings = dict(line.strip().split(": ", 1) for line in lines[lines.index("Options:") + 1 :])
    assert meanings.keys() == kind.__annotations__.keys() and all(meanings.values())


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_fields_have_a_meaning_and_a_plain_type(kind: type[BaseModel]) -> None:
    lines = inspect.getdoc(kind).splitlines()  # type: ignore[union-attr]
    meanings = dict(line.strip().split(": ", 1) for line in lines[lines.index("Fields:") + 1 :])
    assert meanings.keys() == kind.model_fields.keys() and all(meanings.values())
    assert "Validator" not in str(inspect.signature(kind)) and "PydanticUndefined" not in str(inspect.signature(kind))


def test_settings_are_made_as_before() -> None:
    settings = lightningbus.settings.LearnerSettings(model_path=Path("m"), max_steps=3)
    assert settings.model_dump(exclude_unset=True) == {"model_path": Path("m"), "max_steps": 3}
