"""A name on the Hub stands for the model in the Hub's cache; nothing is downloaded for a run."""

from pathlib import Path

import huggingface_hub.constants
import pytest

from lightningbus.auditor.settings import AuditorSettings
from lightningbus.run.errors import UserError
from lightningbus.run.preflight.model_checks import make_empty_model
from lightningbus.run.settings.hub_models import check_model_directories, find_cached_models
from lightningbus.run.settings.run_file import RunSettings

NAME = "somebody/small-model"


@pytest.fixture
def snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a model in a cache, as the Hub's client writes it."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    repository = tmp_path / "cache" / "models--somebody--small-model"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("0123")
    snapshot = repository / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    return snapshot


def settings_of(model: str) -> RunSettings:
    fields = {"model_path": model}
    return RunSettings.model_validate({"learner": fields, "inference": [fields], "auditor": fields})


def test_every_role_gets_the_directory_of_the_cache(snapshot: Path) -> None:
    settings = find_cached_models(settings_of(NAME))
    assert settings.learner is not None and isinstance(settings.auditor, AuditorSettings)
    paths = [settings.learner.model_path, settings.inference[0].model_path, settings.auditor.model_path]
    assert paths == [snapshot] * 3
    several = RunSettings.model_validate({"learners": [{"model_path": NAME, "model": "a"}]})
    assert [each.model_path for each in find_cached_models(several).learners] == [snapshot]


def test_a_directory_of_that_name_comes_first(snapshot: Path, tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir(parents=True)
    settings = settings_of(NAME)
    assert find_cached_models(settings) is settings


def test_a_model_that_is_nowhere_is_a_sentence_that_says_how_to_get_it(snapshot: Path) -> None:
    settings = settings_of("somebody/other")
    assert find_cached_models(settings) is settings and settings.learner is not None
    with pytest.raises(
        UserError, match=r"no model of that name is in the Hugging Face cache .*: `hf download somebody/other`"
    ):
        make_empty_model(settings.learner.model_path)
    with pytest.raises(UserError, match=r"^learner\.model_path: somebody/other is no directory, .* `hf download"):
        check_model_directories(settings)
    with pytest.raises(UserError, match=r"^model: somebody/other is no directory"):
        check_model_directories(settings, {"learner.model_path": "model"})
    with pytest.raises(UserError, match="models/nowhere/here is no model: there is no such directory"):
        make_empty_model(Path("models/nowhere/here"))
