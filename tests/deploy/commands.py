"""A command line of a manifest, run up to the point where the role would begin."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import typer
from typer.core import TyperGroup

from lightningbus.bus.client import Bus
from lightningbus.bus.embedded.nats_server import check_exposure
from lightningbus.cli.app import app
from lightningbus.cli.commands.roles import grader, inference, learner, runner, store
from lightningbus.cli.commands.roles.store import URL_VARIABLE
from lightningbus.common.processes.subprocesses import ProcessGuard
from lightningbus.common.role_settings import RoleSettings
from lightningbus.inference.node import Node
from lightningbus.inference.settings import InferenceSettings
from lightningbus.run.run_directory.discovery import API_KEY_VARIABLE, CREDENTIALS_VARIABLE, BusEndpoint

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
Document = dict[str, Any]
ROLES = {"store", "learner", "inference", "runner"}
OPTIONAL_ROLES = {"grader"}
"""Roles that components of an overlay start."""


class Commands:
    """Reads command lines as ``lightningbus`` does; starts nothing. ``secrets`` is what `bus create-users` made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, directory: Path, secrets: Path) -> None:
        self.secrets = secrets
        self._monkeypatch, self._directory = monkeypatch, directory
        self._begun: list[tuple[BusEndpoint, str, RoleSettings]] = []
        self._guarded = 0
        # In this process a guard would end what other tests have started.
        monkeypatch.setattr(ProcessGuard, "enable", self._stand)
        for module in (grader, inference, learner, runner, store):
            monkeypatch.setattr(
                module, "run_role", lambda at, name, role, checked, *_: self._begun.append((at, name, checked))
            )

    def _stand(self) -> None:
        self._guarded += 1

    def begun(
        self,
        words: Sequence[str],
        settings: Mapping[str, str],
        access: Path | None = None,
        key: Path | None = None,
        url: str | None = None,
    ) -> RoleSettings | None:
        """The checked settings a role would begin with; None: it is no role, but its options are right.

        ``settings`` has the text of each mounted settings file by its path; ``access``, the cluster ``key`` and the
        ``url`` of ClickHouse are what the environment names. Raises `bus.BusError` where the bus or a node would not
        listen for want of them.
        """
        words = [self._local(word, settings) for word in words]
        if words[0] == "--credentials":
            access, words = self.secrets.parent / words[1], words[2:]
        for variable, text in ((CREDENTIALS_VARIABLE, access), (API_KEY_VARIABLE, key), (URL_VARIABLE, url)):
            if text is None:
                self._monkeypatch.delenv(variable, raising=False)
            else:
                self._monkeypatch.setenv(variable, str(text))
        command: Any = typer.main.get_group(app)
        while isinstance(command, TyperGroup) and words and words[0] in command.commands:
            name, command, words = command.resolve_command(typer.Context(command), list(words))
        if name not in ROLES | OPTIONAL_ROLES:
            params = command.make_context(name, list(words)).params
            if name == "bus":
                check_exposure(params["host"], access, params["insecure"])
            return None
        guarded = self._guarded
        command.main(words, standalone_mode=False)
        assert self._guarded - guarded == (name == "runner")
        at, begun, checked = self._begun.pop()
        assert begun == name and (at.credentials is not None) == (access is not None)
        if isinstance(checked, InferenceSettings):
            Node(cast("Bus", None), checked)  # asks for the inference API key before anything else
        return checked

    def _local(self, word: str, settings: Mapping[str, str]) -> str:
        if word not in settings:
            assert not word.startswith("/etc/"), f"{word} is not mounted"
            return word
        path = self._directory / Path(word).name
        path.write_text(settings[word])
        return str(path)
