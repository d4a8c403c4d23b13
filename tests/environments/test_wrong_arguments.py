"""An argument that an environment does not take is named, with its value or with the names that there are."""

from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, ValidationError

from lightningbus.environments.wrong_arguments import check_names, describe_wrong_fields, drop_fields, find_unnamed


class Level(BaseModel):
    """A part of a configuration."""

    model_config = ConfigDict(extra="forbid")
    num_tasks: int = 1
    path: str


class Config(BaseModel):
    """The configuration of an environment."""

    model_config = ConfigDict(extra="forbid")
    taskset: Level
    seed: int = 0


def problems_of(arguments: dict[str, Any]) -> list[Any]:
    with pytest.raises(ValidationError) as raised:
        Config.model_validate(arguments)
    return raised.value.errors()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            {"taskset": {"path": "a", "num_tsks": 3}},
            "taskset.num_tsks: there is no such argument; did you mean 'num_tasks'?",
        ),
        ({"taskset": {"path": "a", "x": 3}}, "taskset.x: there is no such argument; known are num_tasks, path"),
        ({"taskset": {}}, "taskset.path: it is needed"),
        (
            {"taskset": {"path": "a"}, "num_tasks": 3},
            "num_tasks: there is no such argument; did you mean 'taskset.num_tasks'?",
        ),
        (
            {"taskset": {"path": "a"}, "num_tsks": 3},
            "num_tsks: there is no such argument; did you mean 'taskset.num_tasks'?",
        ),
        (
            {"taskset": {"path": "a"}, "xyz": 3},
            "xyz: there is no such argument; known are seed, taskset.num_tasks, taskset.path",
        ),
        (
            {"taskset": {"path": "a", "num_tasks": "many"}, "sed": 1},
            "taskset.num_tasks: Input should be a valid integer, unable to parse string as an integer, not 'many'; "
            "sed: there is no such argument; did you mean 'seed'?",
        ),
    ],
)
def test_a_wrong_field_is_named_with_its_value_or_with_what_there_is(arguments: dict[str, Any], sentence: str) -> None:
    config = Config(taskset=Level(path="a"))
    assert describe_wrong_fields(problems_of(arguments), config) == sentence


def test_without_a_configuration_the_name_alone_is_there() -> None:
    problems = problems_of({"taskset": {"path": "a", "x": 3}})
    assert describe_wrong_fields(problems) == "taskset.x: there is no such argument"


def test_wrong_fields_are_dropped_and_the_others_stay() -> None:
    arguments = {"taskset": {"path": "a", "x": 3}, "sed": 1, "seed": 2}
    assert drop_fields(arguments, problems_of(arguments)) == {"taskset": {"path": "a"}, "seed": 2}


def test_a_function_takes_its_parameters_alone_unless_it_takes_all() -> None:
    def load(num_tasks: int = 1, *, level: str = "") -> None: ...

    def load_all(**options: Any) -> None: ...

    check_names(["num_tasks", "level"], load)
    check_names(["anything"], load_all)
    with pytest.raises(ValueError, match=r"num_tsks: there is no such argument; did you mean 'num_tasks'\?"):
        check_names(["num_tsks"], load)


def test_a_name_that_a_function_takes_without_naming_it_is_a_warning() -> None:
    def load(num_train: int = 1, **options: Any) -> None: ...

    names = ["num_train", "max_turns", "num_trian", "xyz"]
    assert list(find_unnamed(names, load, ["max_turns"])) == [
        "num_trian: load has no parameter of this name, and takes it all the same; did you mean 'num_train'?",
        "xyz: load has no parameter of this name, and takes it all the same",
    ]
