"""A command line of a manifest, run up to the point where the role would begin."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import typer

from bus.health import RoleSettings
from lightningbus import starting
from lightningbus.cli import app

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
Document = dict[str, Any]
ROLES = {"store", "learner", "inference", "runner"}


class Commands:
    """Reads command lines as ``lightningbus`` does; starts nothing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
        self._directory = directory
        self._begun: list[tuple[str, RoleSettings]] = []
        monkeypatch.setattr(
            starting, "run_role", lambda url, name, role, checked, *_: self._begun.append((name, checked))
        )

    def begun(self, words: Sequence[str], settings: Mapping[str, str]) -> RoleSettings | None:
        """The checked settings a role would begin with; None: it is no role, but its options are right.

        ``settings`` has the text of each mounted settings file by its path.
        """
        words = [self._local(word, settings) for word in words]
        command = typer.main.get_group(app).commands[words[0]]
        if words[0] not in ROLES:
            command.make_context(words[0], words[1:])
            return None
        command.main(words[1:], standalone_mode=False)
        name, checked = self._begun.pop()
        assert name == words[0]
        return checked

    def _local(self, word: str, settings: Mapping[str, str]) -> str:
        if word not in settings:
            assert not word.startswith("/etc/"), f"{word} is not mounted"
            return word
        path = self._directory / Path(word).name
        path.write_text(settings[word])
        return str(path)
