"""Commands as a user types them, in a shell that knows nothing of lightningbus."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def environment() -> dict[str, str]:
    """This process's, without our own settings."""
    return {name: value for name, value in os.environ.items() if not name.startswith("LIGHTNINGBUS")}


def python(*arguments: str | Path, cwd: Path) -> str:
    """What a script or module says that ends well; ours can be imported from anywhere."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env={**environment(), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
