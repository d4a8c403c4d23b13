"""Trials of Harbor's tasks that have ended, in a file beside the new directory: a command that was stopped goes on."""

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightningbus.run.run_directory.whole_file import write_whole


@dataclass
class HarborTrials:
    """Reason why each task cannot run, by its digest; empty: it can."""

    path: Path
    arguments: str
    """Arguments of the directory: under others a task is tried again."""
    _reasons: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        try:
            known: Any = json.loads(self.path.read_text("utf-8"))
        except (OSError, ValueError):
            return
        self._reasons = known if isinstance(known, dict) else {}

    def find(self, folder: Path) -> str | None:
        """Return the reason why a task cannot run, empty if it can; None: it was not tried as it is now."""
        return self._reasons.get(self._digest(folder))

    def record(self, folder: Path, reason: str) -> None:
        """Keep the end of a trial."""
        self._reasons[self._digest(folder)] = reason
        write_whole(self.path, json.dumps(self._reasons))

    def forget(self) -> None:
        """Remove the file, once the directory is there."""
        self.path.unlink(missing_ok=True)

    def _digest(self, folder: Path) -> str:
        digest = hashlib.sha256(f"{self.arguments}\0{folder.name}\0".encode())
        for file in sorted(path for path in folder.rglob("*") if path.is_file()):
            content = file.read_bytes()
            digest.update(f"{file.relative_to(folder)}\0{file.stat().st_mode:o}\0{len(content)}\0".encode() + content)
        return digest.hexdigest()
