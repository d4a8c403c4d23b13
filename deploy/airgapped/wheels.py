"""Packages of each part, their versions, and the places of their files. Pure."""

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, Literal

PYTHON = "3.12"
GLIBC_VERSIONS = (*range(39, 16, -1), 12, 5)
"""Minor versions of glibc 2 in the platform tags that wheels have."""
PLATFORMS = (
    *(f"manylinux_2_{minor}_x86_64" for minor in GLIBC_VERSIONS),
    "manylinux2014_x86_64",
    "manylinux2010_x86_64",
    "manylinux1_x86_64",
)
TARGET = (
    *("--python-version", PYTHON, "--implementation", "cp"),
    *(word for abi in ("cp312", "abi3", "none") for word in ("--abi", abi)),
    *(word for platform in PLATFORMS for word in ("--platform", platform)),
)
"""Options of pip for wheels of another Python than its own."""
SOURCES_ALONE = frozenset({"antlr4-python3-runtime", "cellpylib", "nkeys", "zss"})
"""Packages without a wheel. They are pure Python, so any Python builds them."""
BUILT_THERE = frozenset({"pycosat"})
"""Packages without a wheel that are not pure Python. The machine builds them from their sources."""
SOURCES = "sources"
"""Folder of a part with those sources."""
PLACES = {"purelib": PurePosixPath(), "platlib": PurePosixPath(), "scripts": PurePosixPath("bin")}
"""Folders of a wheel's data, and where they lie in a part. Others are left out."""


class PackageError(Exception):
    """A package has no version; the text is a sentence that says what to do."""


def read_packages(text: str) -> dict[str, list[str]]:
    """Return the packages of each part."""
    packages: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            part, package = line.split()
            packages.setdefault(part, []).append(package)
    return packages


def read_versions(lock: str) -> dict[str, str]:
    """Return the version of each package of a lock."""
    return dict(re.findall(r"^([\w.-]+)(?:\[[\w,-]+\])?==([^\s;\\]+)", lock, re.M))


def choose_way(requirement: str) -> Literal["wheels", "sources alone", "built there"]:
    """Return how a package, with or without its version, comes."""
    package = requirement.partition("==")[0]
    if package in BUILT_THERE:
        return "built there"
    return "sources alone" if package in SOURCES_ALONE else "wheels"


def pin(package: str, versions: Mapping[str, str]) -> str:
    """Return the requirement of a package, unless it is one already; raises `PackageError` without a version."""
    if "==" in package:
        return package
    if package not in versions:
        raise PackageError(f"{package} is not in requirements/gpu.lock: correct deploy/airgapped/packages.txt")
    return f"{package}=={versions[package]}"


def place(member: str) -> PurePosixPath | None:
    """Return where a file of a wheel lies in a part; None: it is left out."""
    path = PurePosixPath(member)
    folder, *rest = path.parts
    if not folder.endswith(".data"):
        return path
    return PLACES[rest[0]].joinpath(*rest[1:]) if rest[0] in PLACES else None


def render_entry_points(project: Mapping[str, Any]) -> str:
    """Render the entry points of a project: vLLM finds its plugin by them."""
    groups = {**project["entry-points"], "console_scripts": project["scripts"]}
    lines = [
        line
        for group, entries in groups.items()
        for line in (f"[{group}]", *(f"{name} = {target}" for name, target in entries.items()), "")
    ]
    return "\n".join(lines)
