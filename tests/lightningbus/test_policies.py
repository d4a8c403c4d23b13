"""Settings of a run with several models, and the processes they come to."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.run.errors import UserError
from lightningbus.run.evaluation.request import format_versions
from lightningbus.run.preflight.job_checks import parse_job
from lightningbus.run.processes.stack import child_specs
from lightningbus.run.settings.policy_options import parse_role_models, parse_versions
from lightningbus.run.settings.run_file import RunSettings, validate_settings

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "policies.md").read_text()


def fields() -> dict[str, Any]:
    """The run file of the page."""
    loaded: dict[str, Any] = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[0])
    return loaded


def settings_of(changes: dict[str, Any]) -> RunSettings:
    return validate_settings(RunSettings, {**fields(), **changes}, "run.yaml")


def test_the_run_file_of_the_page_starts_a_learner_for_each_model() -> None:
    settings = settings_of({})
    assert settings.policies == ("writer", "checker") and settings.main_model == "writer"
    learners = {
        child.name: child.settings
        for child in child_specs(settings, Path("runs/pair"))
        if isinstance(child.settings, LearnerSettings)
    }
    assert [*learners] == ["learner-writer", "learner-checker"]
    writer, checker = learners.values()
    assert writer.checkpoint_dir != checker.checkpoint_dir
    roles = {"writer": "writer", "checker": "checker"}
    for learner in (writer, checker):
        assert (learner.run, learner.main_model, learner.role_models) == ("pair", "writer", roles)
    job = parse_job(settings, "run.yaml")
    assert [learner.reward for learner in job.learners] == ["", "checker"]


def test_a_learner_of_its_own_process_is_that_of_the_page() -> None:
    learner = LearnerSettings.model_validate(yaml.safe_load(re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[1]))
    assert learner.main_model == "writer" and learner.model == "checker"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"learner": fields()["learners"][0]}, "give `learner`, or `learners` where several models are trained"),
        ({"learners": fields()["learners"][:1] * 2}, "two learners train model 'writer'"),
        ({"role_models": {"checker": "chekcer"}}, "has model 'chekcer' of role 'checker'"),
    ],
)
def test_what_does_not_fit_together_is_a_sentence(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=re.escape(sentence)):
        settings_of(changes)


def test_learners_of_a_run_have_the_same_tasks() -> None:
    writer, checker = fields()["learners"]
    settings = settings_of({"learners": [writer, {**checker, "group_size": 4, "seed": 3}]})
    with pytest.raises(UserError) as error:
        parse_job(settings, "run.yaml")
    assert "group_size of 'checker' differs from that of 'writer'" in str(error.value)
    assert "seed of 'checker' differs from that of 'writer'" in str(error.value)


def test_versions_and_roles_are_given_by_model() -> None:
    assert parse_versions(["3"]) == {"policy": 3}
    assert parse_versions(["writer=3", "checker=5"]) == {"writer": 3, "checker": 5}
    assert format_versions({"writer": 3, "checker": 5}) == "5_3" and format_versions({"policy": 7}) == "7"
    assert parse_role_models(["checker=small"]) == {"checker": "small"}
    for value in ("three", "writer=", "a=b=c"):
        with pytest.raises(UserError, match="neither a version nor MODEL=VERSION"):
            parse_versions([value])
    for value in ("checker", "=small"):
        with pytest.raises(UserError, match="is not ROLE=MODEL"):
            parse_role_models([value])
