"""Commits of repositories that become workspaces, whatever the name and owner; errors have git's own sentence."""

import os
import subprocess
from pathlib import Path

import pytest

from lightningbus.runners.workspaces.errors import WorkspaceFailedError, WorkspaceRefusedError
from lightningbus.runners.workspaces.files.archives import SizeLimits
from lightningbus.runners.workspaces.files.changes import Change, make_diff
from lightningbus.runners.workspaces.files.sources import GIT_ENVIRONMENT, fetch

LIMITS = SizeLimits(1000, 2**24)
pytestmark = pytest.mark.integration
GIT = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main"]


def make_repository(place: Path, *options: str) -> Path:
    """A repository with a commit of one file."""
    place.mkdir(parents=True)
    (place / "file").write_text("text")
    for words in (["init", "-q", *options], ["add", "-A"], ["commit", "-q", "-m", "first"]):
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
    unknown = make_repository(tmp_path / "unknown")
    for name, value in (("core.repositoryFormatVersion", "1"), ("extensions.mine", "true")):
        subprocess.run([*GIT, "config", name, value], cwd=unknown, check=True)
    refuse(unknown, "git cannot read the repository .*: fatal: unknown repository extension found: mine")


@pytest.mark.parametrize("name", ["HEAD^{tree}", "HEAD:file"])
def test_a_repository_with_a_damaged_object_is_refused(tmp_path: Path, name: str) -> None:
    damaged = make_repository(tmp_path / "damaged")
    named = subprocess.run([*GIT, "rev-parse", name], cwd=damaged, capture_output=True, text=True, check=True)
    place = damaged / ".git" / "objects" / named.stdout[:2] / named.stdout[2:].strip()
    place.unlink()
    place.write_text("no object")
    with pytest.raises(WorkspaceRefusedError, match=r"git cannot read 'HEAD' in the repository .*: (fatal|error): "):
        fetch("git", damaged, "HEAD", tmp_path / "target", LIMITS)


def test_a_fetch_that_fails_from_a_whole_repository_is_a_fault_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = make_repository(tmp_path / "repository")
    monkeypatch.setitem(GIT_ENVIRONMENT, "GIT_ALLOW_PROTOCOL", "none")
    with pytest.raises(WorkspaceFailedError, match=r"git fetch of 'HEAD' failed for .*: fatal: transport 'file' not"):
        fetch("git", repository, "HEAD", tmp_path / "target", LIMITS)


def test_a_repository_may_name_its_objects_by_sha256(tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repository", "--object-format=sha256")
    fetch("git", repository, "main", tmp_path / "target", LIMITS)
    assert (tmp_path / "target" / "file").read_text() == "text"


@pytest.mark.parametrize("commit", ["^HEAD", "HEAD..HEAD", "x" * 4000])
def test_what_names_no_commit_is_refused_in_a_line(tmp_path: Path, commit: str) -> None:
    repository = make_repository(tmp_path / "repository")
    with pytest.raises(WorkspaceRefusedError, match="has no commit '") as refusal:
        fetch("git", repository, commit, tmp_path / "target", LIMITS)
    assert len(str(refusal.value)) < 400


def test_git_of_a_runner_heeds_no_variable_of_its_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hook, or `git rebase --exec`, sets the variables of its own repository."""
    repository = make_repository(tmp_path / "repository")
    other = make_repository(tmp_path / "other")
    subprocess.run([*GIT, "commit", "-q", "--allow-empty", "-m", "second"], cwd=repository, check=True)
    heads = [(place / ".git" / "refs" / "heads" / "main").read_text() for place in (repository, other)]
    for name, value in {
        "GIT_DIR": str(repository / ".git"),
        "GIT_WORK_TREE": str(other),
        "GIT_INDEX_FILE": str(tmp_path / "index"),
        "GIT_CONFIG_COUNT": "x",
        "GIT_DEFAULT_HASH": "sha256",
        "GIT_ALLOW_PROTOCOL": "https",
        "GIT_DIFF_OPTS": "--unified=0",
    }.items():
        monkeypatch.setenv(name, value)
    fetch("git", repository, "HEAD~1", tmp_path / "target", LIMITS)
    assert (tmp_path / "target" / "file").read_text() == "text"
    assert [(place / ".git" / "refs" / "heads" / "main").read_text() for place in (repository, other)] == heads
    (tmp_path / "before").write_text("1\n2\n3\n")
    (tmp_path / "after").write_text("1\n2\n4\n")
    (tmp_path / "diffs").mkdir()
    diff, _ = make_diff(tmp_path / "diffs", [Change("file", tmp_path / "before", tmp_path / "after")])
    assert b"\n 1\n 2\n-3\n+4\n" in diff
