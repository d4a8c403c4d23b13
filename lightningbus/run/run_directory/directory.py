"""The directory of a run: its data, and the addresses of its servers while it is up."""

import json
import logging
import os
import re
import shlex
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from lightningbus.bus.directory_lock import DirectoryInUseError, lock_directory
from lightningbus.bus.errors import BusError
from lightningbus.run.run_directory.labels import read_labels
from lightningbus.schemas.ids import LATEST

log = logging.getLogger(__name__)

SETTINGS = "run.json"
"""Settings of the last start, below a run's directory."""
PARTS = ("logs", "bus", "store", "checkpoints", "work")
LOCKED_PARTS = ("bus", "store", "checkpoints")
"""Parts of the directory that a role started by itself may work in."""
RUNS = Path("runs")
INPUTS = ".inputs"
"""Below the directory of runs: what a notebook passes to them. No run has such a name."""
MOVED_ASIDE = re.compile(r"-\d{8}-\d{6}$")
"""Suffix of a run's directory that was moved aside."""


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Addresses of a running ``up``; ``pid`` tells whether it still runs. Keys are given as paths."""

    pid: int
    bus: str
    sql: str = ""
    credentials: str = ""
    inference_api_key: str = ""
    roles: dict[str, int] = field(default_factory=dict)


class RunDirectory:
    """``runs/<name>``: logs, store, bus, checkpoints, and the file with the servers' addresses."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def latest(cls, runs: Path = RUNS) -> "RunDirectory | None":
        """Return the run started last, None without any."""
        path = runs / LATEST
        return cls(path.resolve()) if path.exists() else None

    @classmethod
    def named(cls, name: str, runs: Path = RUNS) -> "RunDirectory | None":
        """Return the directory of a run by its name, None if there is none."""
        path = runs / name
        return cls(path) if Path(name).name == name and path.is_dir() else None

    def create(self) -> "RunDirectory":
        """Create the directory, readable by its owner alone, and make it the latest."""
        self._make()
        self.make_latest()
        return self

    def make_latest(self) -> None:
        """Make `LATEST` refer to this run."""
        link = self.path.parent / LATEST
        new = link.with_name(f".{LATEST}-{os.getpid()}")
        new.unlink(missing_ok=True)
        new.symlink_to(self.path.name)
        new.replace(link)

    def is_beside_another(self) -> bool:
        """Return whether another run is the latest, and up."""
        latest = self._find_other_latest()
        return latest is not None and latest.is_up()

    def is_beside_training(self) -> bool:
        """Return whether another run is the latest, and a learner was started in it."""
        latest = self._find_other_latest()
        try:
            return latest is not None and bool(latest.read_learners())
        except BusError:
            return True

    def _find_other_latest(self) -> "RunDirectory | None":
        latest = RunDirectory.latest(self.path.parent)
        return latest if latest is not None and latest.path != self.path.resolve() else None

    def is_up(self) -> bool:
        """Return whether a process keeps the run's servers up, as far as that can be read."""
        try:
            return self.read_endpoints() is not None
        except BusError:
            return False

    @contextmanager
    def lock(self, fresh: bool = False) -> Iterator["RunDirectory"]:
        """Reserve and open the directory for this process while the block runs; see `reserved` and `opened`."""
        with self.reserved(), self.opened(fresh):
            yield self

    @contextmanager
    def reserved(self) -> Iterator[None]:
        """Reserve the run's name for this process while the block runs; the directory is not changed.

        Raises `bus.BusError` while another process works in it.
        """
        with self._locked():
            with self._parts_locked():
                pass
            yield

    @contextmanager
    def opened(self, fresh: bool = False) -> Iterator[None]:
        """Create the directory, inside `reserved`; ``fresh`` moves an earlier run of the same name aside first.

        Raises `bus.BusError`, and changes nothing, while another process works in a part of it, or where it has the
        data of a run that was renamed.
        """
        if not fresh and (run_id := read_labels(self.path).run_id):
            raise BusError(
                f"run {self.path.name!r} was renamed and its data has the name {run_id!r}: to go on with it, name it "
                f"{run_id!r} again by `lightningbus runs rename`"
            )
        with ExitStack() as exits:
            with self._parts_locked():
                if fresh and any(self.path.glob("[!.]*")):
                    self._move_aside()
                    exits.enter_context(self._locked())
            self._make()
            yield

    def _make(self) -> None:
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in PARTS:
            (self.path / name).mkdir(exist_ok=True)

    @contextmanager
    def _parts_locked(self) -> Iterator[None]:
        with ExitStack() as locks:
            for part in (self.path / name for name in LOCKED_PARTS):
                if part.exists():
                    locks.enter_context(lock_directory(part))
            yield

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with ExitStack() as exits:
            try:
                exits.enter_context(lock_directory(self.path))
            except DirectoryInUseError as error:
                raise BusError(f"run {self.path.name!r} is up{error.owner}: stop it, or use another name") from error
            yield

    def _move_aside(self) -> None:
        """Rename the directory by its time, and tell where it is; a directory that has that name is kept."""
        seconds = self.path.stat().st_mtime
        while (aside := self.path.with_name(f"{self.path.name}-{_format_time(seconds)}")).exists():
            seconds += 1
        self.path.rename(aside)
        log.warning("run %r was there already: its directory is %s now", self.path.name, aside)

    def log(self, role: str) -> Path:
        """Return the path of a role's log file."""
        return self.path / "logs" / f"{role}.log"

    def read_settings(self, role: str) -> dict[str, Any]:
        """Read the settings that the run's learner, or its first inference node, was started with; empty if unknown.

        Raises `bus.BusError` when they cannot be read.
        """
        path = self.path / "work" / f"{role}.json"
        try:
            return dict(json.loads(path.read_text()))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError) as error:
            raise BusError(f"the settings of {role} in {self.path} cannot be read: {error}") from error

    def read_learners(self) -> dict[str, dict[str, Any]]:
        """Read the settings that the run's learners were started with, by model; the one that agents call comes first.

        Empty if unknown. Raises `bus.BusError` when they cannot be read.
        """
        learners: dict[str, dict[str, Any]] = {}
        roles = self.read_roles("learner")
        for role in sorted(roles, key=lambda role: (role.endswith("-first"), role)):  # that one only publishes
            learners.setdefault(str(roles[role].get("model", "policy")), roles[role])
        return dict(sorted(learners.items(), key=lambda item: item[1].get("task_model") not in (None, item[0])))

    def read_nodes(self) -> dict[str, dict[str, Any]]:
        """Read the settings that the run's first inference node of each model was started with, by model.

        Empty if unknown. Raises `bus.BusError` when they cannot be read.
        """
        nodes: dict[str, dict[str, Any]] = {}
        for settings in self.read_roles("inference-").values():
            nodes.setdefault(str(settings.get("model", "policy")), settings)
        return nodes

    def read_roles(self, prefix: str) -> dict[str, dict[str, Any]]:
        """Read the settings of all processes whose names begin with ``prefix``, by name, in the order of names.

        Raises `bus.BusError` when they cannot be read.
        """
        names = sorted(path.stem for path in (self.path / "work").glob(f"{prefix}*.json"))
        return {name: self.read_settings(name) for name in names}

    @property
    def run_id(self) -> str:
        """Id of the run in the store, also for a directory that was renamed, copied or moved aside.

        Raises `UserError` when the file with the id of a renamed run cannot be read.
        """
        return read_labels(self.path).run_id or self._recorded_run_id() or MOVED_ASIDE.sub("", self.path.resolve().name)

    def _recorded_run_id(self) -> str:
        """Return the id that the run's learner was started with, empty if unknown."""
        with suppress(BusError):
            for settings in self.read_learners().values():
                return str(settings.get("run") or "")
        return ""

    def list_export_commands(self) -> list[str]:
        """Return a command for each model of the run, which exports it into a directory.

        Raises `bus.BusError` when the settings of its learners cannot be read.
        """
        run, bus = shlex.quote(str(self.path)), "" if self.has_own_bus() else " --bus URL"  # it is not the run's own
        command = f"lightningbus weights export --run {run}{bus}"
        models = list(self.read_learners())
        if len(models) < 2:
            return [f"{command} {shlex.quote(f'{self.path.name}-model')}"]
        return [f"{command} --model {model} {shlex.quote(f'{self.path.name}-{model}')}" for model in models]

    def has_own_bus(self) -> bool:
        """Return whether the bus keeps its files in the directory, so that they can be read after the run."""
        return (self.path / "bus" / "jetstream").is_dir()

    @property
    def store(self) -> Path:
        """Data directory of the embedded ClickHouse."""
        return self.path / "store"

    @property
    def credentials(self) -> Path:
        """Directory with the users of an embedded bus, or with signing keys alone if it has no users."""
        return self.path / "credentials"

    def has_stored_data(self) -> bool:
        """Return whether an embedded ClickHouse has stored data; lock files do not count."""
        return any(self.store.glob("[!.]*"))

    def write_endpoints(self, endpoints: Endpoints) -> None:
        """Write the servers' addresses."""
        temporary = self.path / ".endpoints.json"
        temporary.touch(mode=0o600)  # an address may hold a password
        temporary.write_text(json.dumps(asdict(endpoints), indent=2))
        temporary.replace(self.path / "endpoints.json")

    def clear_endpoints(self) -> None:
        """Delete the servers' addresses; the process that ran them may live on, as a notebook does."""
        (self.path / "endpoints.json").unlink(missing_ok=True)

    def read_endpoints(self) -> Endpoints | None:
        """Read the servers' addresses, None unless the run is up; raises `bus.BusError` when their file is corrupt."""
        path = self.path / "endpoints.json"
        try:
            endpoints = msgspec.json.decode(path.read_bytes(), type=Endpoints)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            raise BusError(f"{path} cannot be read ({error}): start the run again, or give --bus") from error
        return endpoints if _alive(endpoints.pid) else None


def _format_time(seconds: float) -> str:
    return time.strftime("%Y%m%d-%H%M%S", time.localtime(seconds))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
