"""A run's directory: where its data lies, and where its servers listen while it is up."""

import json
import os
import shutil
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import msgspec

RUNS = Path("runs")
LATEST = "latest"


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where a running ``up`` can be reached; ``pid`` tells whether it still runs. Keys are said by where they lie."""

    pid: int
    bus: str
    sql: str = ""
    access: str = ""
    cluster_key: str = ""
    roles: dict[str, int] = field(default_factory=dict)


class RunDirectory:
    """``runs/<name>``: logs, store, bus, checkpoints, and the file that says where the servers are."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def latest(cls, runs: Path = RUNS) -> "RunDirectory | None":
        """The run started last, if there is one."""
        path = runs / LATEST
        return cls(path.resolve()) if path.exists() else None

    def create(self, fresh: bool = False) -> "RunDirectory":
        """Make it, and make it the latest; ``fresh`` moves an earlier one of the same name aside first."""
        if fresh and self.path.exists():
            moment = time.strftime("%Y%m%d-%H%M%S", time.localtime(self.path.stat().st_mtime))
            aside = self.path.with_name(f"{self.path.name}-{moment}")
            shutil.rmtree(aside, ignore_errors=True)
            self.path.rename(aside)
        for name in ("logs", "bus", "store", "checkpoints", "work"):
            (self.path / name).mkdir(parents=True, exist_ok=True)
        link = self.path.parent / LATEST
        link.unlink(missing_ok=True)
        link.symlink_to(self.path.name)
        return self

    def log(self, role: str) -> Path:
        """Log file of a role."""
        return self.path / "logs" / f"{role}.log"

    @property
    def store(self) -> Path:
        """Where the embedded ClickHouse keeps its data."""
        return self.path / "store"

    def write_endpoints(self, endpoints: Endpoints) -> None:
        """Say where the servers are."""
        temporary = self.path / ".endpoints.json"
        temporary.touch(mode=0o600)  # an address may hold a password
        temporary.write_text(json.dumps(asdict(endpoints), indent=2))
        temporary.replace(self.path / "endpoints.json")

    def endpoints(self) -> Endpoints | None:
        """Where the servers are, if the run is up."""
        try:
            found = msgspec.json.decode((self.path / "endpoints.json").read_bytes(), type=Endpoints)
        except (OSError, ValueError, msgspec.DecodeError, RecursionError):
            return None
        return found if _alive(found.pid) else None


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
