"""Commits of repositories that become workspaces, whatever the name and owner; errors have git's own sentence."""

import os
import subprocess
from pathlib import Path

import pytest

from lightningbus.runners.workspaces.errors import WorkspaceFailedError, WorkspaceRefusedError
from lightningbus.runners.workspaces.files.archives import SizeLimits
from lightningbus.runners.workspaces.files.sources import fetch

LIMITS = SizeLimits(1000, 2**24)
pytestmark = pytest.mark.integration
GIT = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main"]


def make_repository(place: Path) -> Path:
    """A repository with a commit of one file."""
    place.mkdir(parents=True)
    (place / "file").write_text("text")
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "first"]):
        subprocess.run([*GIT, *words], cwd=place, check=True)
    return place


@pytest.mark.parametrize("name", ["%41", "a#b", "a?b", "a b%", "ä", 'a"b\\c', "a:b", "[a]*", "new\nline"])
def test_a_repository_may_have_any_name(tmp_path: Path, name: str) -> None:
    repository = make_repository(tmp_path / name)
    fetch("git", repository, "HEAD", tmp_path / "target", LIMITS)
    assert (tmp_path / "target" / "file").read_text() == "text"


def give_away(directory: Path) -> None:
    """Make all files another user's, who lets anybody read them."""
    for path in (directory, *directory.rglob("*")):
        os.chown(path, 12345, 12345, follow_symlinks=False)


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files to another user")
@pytest.mark.parametrize("kind", ["plain", "bare", "worktree"])
def test_a_repository_of_another_owner_is_a_source(tmp_path: Path, kind: str) -> None:
    repository = make_repository(tmp_path / "theirs" / "plain")
    words = {"bare": ["clone", "-q", "--bare", "."], "worktree": ["worktree", "add", "-q"]}
    if kind in words:
        subprocess.run([*GIT, *words[kind], f"../{kind}"], cwd=repository, check=True)
    give_away(tmp_path / "theirs")
    fetch("git", tmp_path / "theirs" / kind, "HEAD", tmp_path / "target", LIMITS)
    assert (tmp_path / "target" / "file").read_text() == "text"


def test_a_repository_that_git_cannot_read_has_gits_sentence(tmp_path: Path) -> None:
    def refuse(repository: Path, match: str, kind: type[Exception] = WorkspaceRefusedError) -> None:
        with pytest.raises(kind, match=match):
            fetch("git", repository, "HEAD", tmp_path / "target", LIMITS)

    repository = make_repository(tmp_path / "repository")
    (repository / ".git" / "config").write_text("[broken")
    refuse(repository, "git cannot read the repository .*: fatal: bad config line . in file .*config")
    (tmp_path / "file").touch()
    refuse(tmp_path / "file", "it is not a directory")
    empty = tmp_path / "empty"
    empty.mkdir()
    refuse(empty, "fatal: not a git repository")
    subprocess.run([*GIT, "init", "-q"], cwd=empty, check=True)
    refuse(empty, "has no commit 'HEAD'")
    damaged = make_repository(tmp_path / "damaged")
    tree = subprocess.run([*GIT, "rev-parse", "HEAD^{tree}"], cwd=damaged, capture_output=True, text=True, check=True)
    (damaged / ".git" / "objects" / tree.stdout[:2] / tree.stdout[2:].strip()).unlink()
    refuse(damaged, "git fetch of 'HEAD' failed for .*: fatal: ", WorkspaceFailedError)
