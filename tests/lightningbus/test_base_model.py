"""How an exported model calls its base: by the Hub's name or the user's, never by a path."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lightningbus.export.base_model import read_base_model
from lightningbus.run.settings.hub_models import is_hub_name

PARTS = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9_.]{0,11}(?:-[A-Za-z0-9_.]{1,6})?\Z")


def test_the_users_name_wins_then_the_hubs_then_that_of_the_directory(tmp_path: Path) -> None:
    cached = tmp_path / "models--Qwen--Qwen3-0.6B" / "snapshots" / "abc"
    cached.mkdir(parents=True)
    assert read_base_model(cached, "mine").name == "mine"
    assert read_base_model(cached).name == "Qwen/Qwen3-0.6B" and read_base_model(cached).is_on_hub
    local = tmp_path / "local-model"
    local.mkdir()
    assert read_base_model(local).name == "local-model" and not read_base_model(local).is_on_hub
    (local / "config.json").write_text(json.dumps({"_name_or_path": "somebody/model"}))
    assert read_base_model(local).name == "somebody/model"


@pytest.mark.parametrize("name", ["/root/models/m", "./m", "../a/b", "models/a/b", "C:\\m", "", 7, None])
def test_a_path_in_the_configuration_is_no_name(tmp_path: Path, name: object) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"_name_or_path": name}))
    assert read_base_model(tmp_path).name == tmp_path.name


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(owner=PARTS, name=PARTS)
def test_a_name_is_never_a_path(tmp_path: Path, owner: str, name: str) -> None:
    base_name = read_base_model(tmp_path / f"models--{owner}--{name}" / "snapshots" / "0").name
    assert base_name == f"{owner}/{name}" and is_hub_name(base_name)
    assert "/" not in read_base_model(tmp_path / owner / name).name


@pytest.mark.parametrize(
    ("card", "expected"),
    [
        ("---\nlicense: mit\n---\n# m", {"license": "mit"}),
        (
            "---\nlicense: other\nlicense_name: qwen\nlicense_link: LICENSE\n---\n",
            {"license": "other", "license_name": "qwen", "license_link": "LICENSE"},
        ),
        ("---\nlicense: [a, b]\n---\n", {}),
        ("---\n{\n---\n", {}),
        ("---\njust text\n---\n", {}),
        ("# no metadata", {}),
    ],
)
def test_the_licence_is_that_of_the_bases_card(tmp_path: Path, card: str, expected: dict[str, str]) -> None:
    (tmp_path / "README.md").write_text(card)
    assert read_base_model(tmp_path).license == expected
