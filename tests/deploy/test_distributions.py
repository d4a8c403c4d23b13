"""``make dist``: what is released is that of a commit, the same each time, and says of what it was made."""

import hashlib
import json
import os
import subprocess
import tarfile
import zipfile
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import pytest

from deploy.distributions import describe_provenance, repack
from deploy.sbom import LOCKS
from tests.commands import ROOT, environment

SECONDS = 900


def test_a_statement_names_each_file_and_what_it_was_made_of() -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    statement = describe_provenance({"a.whl": "0a"}, "c0ffee", {"requirements/cpu.lock": "1b"}, at, at)
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["subject"] == [{"name": "a.whl", "digest": {"sha256": "0a"}}]
    assert statement["predicateType"] == "https://slsa.dev/provenance/v1"
    definition, details = statement["predicate"]["buildDefinition"], statement["predicate"]["runDetails"]
    assert definition["externalParameters"] == {"commit": "c0ffee"}
    assert [item["digest"] for item in definition["resolvedDependencies"]] == [
        {"gitCommit": "c0ffee"},
        {"sha256": "1b"},
    ]
    assert details["metadata"] == {"startedOn": "2026-01-02T03:04:05+00:00", "finishedOn": "2026-01-02T03:04:05+00:00"}
    assert details["builder"]["id"]


def test_a_repacked_archive_has_neither_the_time_nor_the_owner_of_its_build(tmp_path: Path) -> None:
    digests = set()
    for number in range(2):
        (tmp_path / "file").write_text("content")
        os.utime(tmp_path / "file", (number, number))
        with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as archive:
            for name in ("x/b", "x/a")[:: 1 - 2 * number]:
                archive.add(tmp_path / "file", name)
        repack(tmp_path / "a.tar.gz", 1000)
        digests.add(hashlib.sha256((tmp_path / "a.tar.gz").read_bytes()).hexdigest())
    assert len(digests) == 1
    with tarfile.open(tmp_path / "a.tar.gz") as archive:
        assert [(member.name, member.mtime, member.uid, member.uname) for member in archive] == [
            ("x/a", 1000, 0, ""), ("x/b", 1000, 0, "")
        ]  # fmt: skip
        file = archive.extractfile("x/b")
        assert file is not None and file.read() == b"content"


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone of the last commit."""
    directory = tmp_path_factory.mktemp("clone") / "sources"
    subprocess.run(["git", "clone", "--quiet", ROOT, directory], check=True, timeout=SECONDS)
    return directory


def make_dist(clone: Path) -> dict[str, str]:
    """Run ``make dist``, and return the SHA-256 of each file."""
    subprocess.run(["make", "dist"], cwd=clone, env=environment(), check=True, timeout=SECONDS)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (clone / "dist").iterdir()}


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.timeout(2 * SECONDS)
def test_a_commit_gives_the_same_files_each_time_and_their_provenance(clone: Path) -> None:
    first, second = make_dist(clone), make_dist(clone)
    assert first.pop("provenance.json") != second.pop("provenance.json")  # it has the times
    assert first.pop("SHA256SUMS") != second.pop("SHA256SUMS")
    assert first == second
    statement = json.loads((clone / "dist" / "provenance.json").read_text())
    assert {item["name"]: item["digest"]["sha256"] for item in statement["subject"]} == first
    check = ["sha256sum", "--check", "--quiet", "SHA256SUMS"]
    subprocess.run(check, cwd=clone / "dist", check=True, timeout=SECONDS)
    (wheel,) = (clone / "dist").glob("*.whl")
    assert "lightningbus/graders/__init__.py" in zipfile.ZipFile(wheel).namelist()
    for name in LOCKS:
        bill = json.loads((clone / "dist" / f"sbom-{name}.json").read_text())
        assert bill["metadata"]["component"]["name"] == "lightningbus"
        assert bill["metadata"]["component"]["version"] == version("lightningbus")
        components = {component["name"] for component in bill["components"]}
        assert "nats-py" in components and ("torch" in components) == (name not in ("runner", "store")), name

    (clone / "README.md").write_text("changed")
    refused = subprocess.run(
        ["make", "dist"], cwd=clone, env=environment(), capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert (
        refused.returncode and "commit or remove these files first" in refused.stderr and "README.md" in refused.stderr
    )
