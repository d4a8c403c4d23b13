"""What an agent changed is told whatever way a workspace was copied, and its diff makes the same of the original."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightningbus.runners.workspaces.files.changes import find_changes, make_diff
from lightningbus.runners.workspaces.files.copies import OVERLAY_SCRIPT, CopyMethod, WorkspaceCopy, choose_method
from tests.runners.test_sandbox import usable

pytestmark = pytest.mark.integration
NOBODY = 65534
AS_NOBODY = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
PYTHON = "/usr/bin/python3"
CHANGES = """
echo b > changed; touch same; cat same > x; cat x > same; rm x gone; chmod +x mode
rm -r again; mkdir again; echo new > again/new; echo old > again/old
rm -r tree; echo file > tree; rm file; mkdir file; echo in > file/in; rm -r all; ln -s changed link; mkdir deep deep/er
printf '\\0\\1' > deep/er/bytes; mv moved elsewhere; mkdir .git; echo x > .git/HEAD; mkfifo pipe
"""
"""Every kind: changed, written as it was, removed, replaced by another kind, moved, in a directory made again."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory that any user can reach, on a file system that an overlay can lie on."""
    place = Path(tempfile.mkdtemp())
    place.chmod(0o755)
    try:
        yield place
    finally:
        shutil.rmtree(place)


def make_base(base: Path) -> None:
    """The files that a workspace begins with."""
    names = ("changed", "same", "gone", "mode", "again/old", "again/other", "tree/a/b", "file", "all/c", "moved/d")
    for name in names:
        (base / name).parent.mkdir(parents=True, exist_ok=True)
        (base / name).write_text("old\n")


def contents(directory: Path) -> dict[str, str | bytes]:
    """Files of a directory and what is in them, without those that no diff tells."""
    contents: dict[str, str | bytes] = {}
    for path in directory.rglob("*"):
        name = str(path.relative_to(directory))
        if path.is_symlink():
            contents[name] = str(path.readlink())
        elif path.is_file() and not name.startswith(".git/"):
            contents[name] = path.read_bytes()
    return contents


@pytest.mark.parametrize("user", ["same", "nobody"])
@pytest.mark.parametrize("method", ["overlay", "copy"])
def test_a_diff_makes_of_the_original_what_the_agent_made_of_its_copy(
    folder: Path, method: CopyMethod, user: str
) -> None:
    make_base(folder / "base")
    copy = WorkspaceCopy(folder / "copy", folder / "base", method)
    copy.make()
    prefix: list[str] = []
    words = copy.mount_words()
    if user == "nobody":
        if why := "only root can be another user" if os.getuid() else usable(*AS_NOBODY, PYTHON, "-c", "", ";"):
            pytest.skip(why)
        subprocess.run(["chown", "-R", f"{NOBODY}:{NOBODY}", str(folder)], check=True)
        shutil.copy(OVERLAY_SCRIPT, folder / "script.py")
        prefix = AS_NOBODY
        words = [
            PYTHON if word == words[0] else word.replace(str(OVERLAY_SCRIPT), f"{folder}/script.py") for word in words
        ]
    elif method == "overlay" and choose_method(folder, ("overlay", "copy")) == "copy":
        pytest.skip("this machine makes no overlays here")
    keeps = f"{CHANGES}cp -a . {folder}/seen"
    done = subprocess.run(
        [*prefix, *words, "/bin/sh", "-ec", keeps], cwd=copy.work, capture_output=True, text=True, check=False
    )
    if user == "nobody" and "cannot be made" in done.stderr:
        pytest.skip(f"users make no namespaces here: {done.stderr}")
    assert done.returncode == 0, done.stderr
    changes = find_changes(copy)
    paths = {change.path for change in changes}
    assert paths == {
        "changed", "gone", "mode", "again/new", "again/other", "tree", "tree/a/b", "file", "file/in", "all/c", "link",
        "deep/er/bytes", "moved/d", "elsewhere/d", "pipe",
    }  # fmt: skip
    diff, num_left_out = make_diff(copy.folder, changes)
    assert num_left_out == 1, "the pipe"
    shutil.copytree(folder / "base", folder / "applied", symlinks=True)
    subprocess.run(["git", "apply", "-"], cwd=folder / "applied", input=diff, check=True)
    assert contents(folder / "applied") == contents(folder / "seen")
    assert os.access(folder / "applied" / "mode", os.X_OK)
    assert contents(folder / "base")["changed"] == b"old\n"
