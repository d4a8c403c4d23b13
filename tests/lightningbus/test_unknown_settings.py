"""Settings that do not exist: a name of another library gets ours, and no sentence ends in a separator."""

from collections.abc import Iterator
from types import UnionType
from typing import Union, get_args, get_origin

import pytest
from pydantic import BaseModel

from lightningbus.api.settings import PATHS
from lightningbus.common.unknown_settings import OTHER_NAMES, PAGES, describe_unknown
from lightningbus.learner.settings.algorithm import TaskSet
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.run.settings.evaluation import EvalSettings
from lightningbus.run.settings.run_file import RunSettings
from tests.deploy.commands import ROOT


def paths_of(kind: type[BaseModel]) -> Iterator[str]:
    """List the settings of a class and of its sections, as paths."""
    for name, field in kind.model_fields.items():
        yield name
        is_union = get_origin(field.annotation) in (Union, UnionType)
        for section in get_args(field.annotation) if is_union else (field.annotation,):
            if isinstance(section, type) and issubclass(section, BaseModel):
                yield from (f"{name}.{path}" for path in paths_of(section))


@pytest.mark.parametrize(("name", "path"), [(name, path) for name, paths in OTHER_NAMES.items() for path in paths])
def test_each_name_of_another_library_stands_for_a_setting(name: str, path: str) -> None:
    actor = LearnerSettings.model_fields["actor"].annotation
    assert isinstance(actor, type) and issubclass(actor, BaseModel)
    ours = {*PATHS, *paths_of(LearnerSettings), *paths_of(actor), *TaskSet.model_fields, *EvalSettings.model_fields}
    assert path in ours | set(paths_of(RunSettings))
    known = {tuple(kind.model_fields) for kind in (LearnerSettings, EvalSettings, TaskSet, RunSettings)}
    sections = [names for names in known if path.partition(".")[0] in names]
    assert all(name not in names for names in sections), "it is a setting of ours there"


@pytest.mark.parametrize(
    ("name", "known", "sentence"),
    [
        ("rollouts_per_example", LearnerSettings.model_fields, "no such setting; did you mean 'group_size'?"),
        ("learning_rate", LearnerSettings.model_fields, "no such setting; did you mean 'actor.optim.lr'?"),
        ("learning_rate", ["lr", "group_size"], "no such setting; did you mean 'lr'?"),
        ("ratio", TaskSet.model_fields, "no such setting; did you mean 'weight'?"),
        ("group_siz", LearnerSettings.model_fields, "no such setting; did you mean 'group_size'?"),
        ("eval_steps", EvalSettings.model_fields, "no such setting; did you mean 'every'?"),
        ("interval", EvalSettings.model_fields, "no such setting; did you mean 'every'?"),
        ("rollouts_per_example", EvalSettings.model_fields, "no such setting; did you mean 'samples'?"),
        (
            "filter_zero_advantages",
            LearnerSettings.model_fields,
            "no such setting; did you mean 'task_selection.replace_without_signal'?",
        ),
        (
            "orchestrator",
            RunSettings.model_fields,
            "no such setting; did you mean 'learner'? docs/from-prime-rl.md has its counterparts",
        ),
        (
            "ckpt",
            RunSettings.model_fields,
            "no such setting; did you mean 'learner.checkpoint_interval'? docs/from-prime-rl.md has its counterparts",
        ),
        (
            "monitors",
            RunSettings.model_fields,
            "no such setting; did you mean 'trackers'? docs/from-prime-rl.md has its counterparts",
        ),
        (
            "deployment",
            RunSettings.model_fields,
            "no such setting; docs/from-prime-rl.md has its counterparts",
        ),
        ("seq_len", RunSettings.model_fields, "no such setting; did you mean 'learner.seq_len'?"),
        ("zzz", ["b", "a"], "no such setting; known are a, b"),
        ("zzz", map(str, range(30)), "no such setting"),
        ("zzz", [], "no such setting"),
    ],
)
def test_an_unknown_setting_is_described(name: str, known: list[str], sentence: str) -> None:
    assert describe_unknown(name, known) == sentence


@pytest.mark.parametrize(("name", "pages"), PAGES.items())
def test_a_page_that_a_sentence_names_has_the_section(name: str, pages: str) -> None:
    for page in pages.split(" or "):
        assert f"`{name}" in (ROOT / page).read_text(), page
