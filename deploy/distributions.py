"""``make dist``: build and check the distributions of a commit, and write an SBOM and their provenance beside them."""

import argparse
import gzip
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from deploy.sbom import LOCKS, write_sbom

ROOT = Path(__file__).resolve().parents[1]
STATEMENT, PROVENANCE = "https://in-toto.io/Statement/v1", "https://slsa.dev/provenance/v1"
PROJECT = "lightningbus"


def describe_provenance(
    digests: Mapping[str, str], commit: str, locks: Mapping[str, str], began_at: datetime, ended_at: datetime
) -> dict[str, Any]:
    """Describe how files were built, as SLSA's provenance 1.0 in an in-toto statement, without a signature.

    :param digests: SHA-256 of each file by its name, in hexadecimal digits.
    :param locks: the same of each lock that is part of the sources.
    """
    dependencies = [{"uri": f"git+{PROJECT}", "digest": {"gitCommit": commit}}]
    dependencies += [{"uri": name, "digest": {"sha256": digest}} for name, digest in locks.items()]
    return {
        "_type": STATEMENT,
        "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in digests.items()],
        "predicateType": PROVENANCE,
        "predicate": {
            "buildDefinition": {
                "buildType": f"{PROJECT}/make-dist/v1",
                "externalParameters": {"commit": commit},
                "internalParameters": {"python": sys.version.split()[0]},
                "resolvedDependencies": dependencies,
            },
            "runDetails": {
                "builder": {"id": f"{PROJECT}/deploy/distributions.py"},
                "metadata": {"startedOn": began_at.isoformat(), "finishedOn": ended_at.isoformat()},
            },
        },
    }


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_git(*words: str) -> str:
    """Return what a git command prints. Raises CalledProcessError if it fails."""
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def build(sources: Path, target: Path, built_at: int) -> list[Path]:
    """Build the source distribution and from it the wheel, and check what a package index would refuse.

    The same commit and packages give the same bytes: each file in them has the commit's time, and no owner.

    :param built_at: seconds since 1970.
    """
    env = {**os.environ, "SOURCE_DATE_EPOCH": str(built_at)}
    run_tool("build", "--no-isolation", "--outdir", str(target), str(sources), env=env)
    files = sorted(target.glob(f"{PROJECT}-*"))
    for path in files:
        if path.name.endswith(".tar.gz"):
            repack(path, built_at)
    run_tool("twine", "check", "--strict", *map(str, files), env=env)
    return files


def repack(path: Path, built_at: int) -> None:
    """Write a source distribution again with one time and no owner, for setuptools takes those of the build.

    :param built_at: seconds since 1970.
    """
    with tarfile.open(path) as archive:
        members = [(member, archive.extractfile(member)) for member in archive.getmembers()]
        with (
            path.with_suffix(".new").open("wb") as file,
            gzip.GzipFile("", "wb", fileobj=file, mtime=built_at) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as out,
        ):
            for member, content in sorted(members, key=lambda entry: entry[0].name):
                member.mtime, member.uid, member.gid, member.uname, member.gname = built_at, 0, 0, "", ""
                member.pax_headers = {}
                out.addfile(member, content)
    path.with_suffix(".new").replace(path)


def run_tool(module: str, *words: str, env: Mapping[str, str] | None = None) -> None:
    """Run a module of this environment. Raises CalledProcessError if it fails."""
    subprocess.run([sys.executable, "-m", module, *words], env=env, check=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Build the checked-out commit. Exit with a sentence if files differ from it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="directory for the files; what it holds of earlier builds is deleted")
    out: Path = parser.parse_args(arguments).out
    if changed := read_git("status", "--porcelain"):
        raise SystemExit(f"commit or remove these files first, a distribution is that of a commit:\n{changed}")
    commit, committed_at = read_git("rev-parse", "HEAD"), int(read_git("log", "-1", "--format=%ct"))
    began_at = datetime.now(UTC)
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as directory:
        archive = Path(directory) / "sources.tar"
        read_git("archive", "--output", str(archive), commit)
        shutil.unpack_archive(archive, Path(directory) / "sources", filter="data")
        files = build(Path(directory) / "sources", out, committed_at)
    locks = {f"requirements/{name}.lock": hash_file(ROOT / "requirements" / f"{name}.lock") for name in LOCKS}
    files += [write_sbom(name, out) for name in LOCKS]
    digests = {path.name: hash_file(path) for path in files}
    statement = describe_provenance(digests, commit, locks, began_at, datetime.now(UTC))
    provenance = out / "provenance.json"
    provenance.write_text(json.dumps(statement, indent=2) + "\n")
    digests[provenance.name] = hash_file(provenance)
    (out / "SHA256SUMS").write_text("".join(f"{digest}  {name}\n" for name, digest in digests.items()))
    print("\n".join(str(path) for path in sorted(out.iterdir())))


if __name__ == "__main__":
    main()
