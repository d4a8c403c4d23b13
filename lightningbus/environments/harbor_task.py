"""A task of Harbor on this machine: what its directory asks for, and why it cannot run without a container."""

import re
import shlex
import shutil
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

HOST_DIRECTORIES = {"bin", "dev", "lib", "lib32", "lib64", "proc", "sbin", "sys", "usr"}
"""Directories of the root that a sandbox has from this machine; no file can be copied into them."""
CONTAINER_FILES = ("docker-compose.yaml", "docker-compose.yml", "singularity-compose.yaml", "steps")
"""Files of a task that ask for more than one container, or for several steps."""
CANARY = re.compile(r"\A(?:(?:<!--.*canary.*-->|#.*canary.*)\n)+\s*", re.IGNORECASE)


class ContainerRequiredError(ValueError):
    """A task needs a feature that only a container has; the message names it."""


@dataclass(frozen=True, slots=True)
class HarborTask:
    """A task directory whose image is this machine's programs and some files."""

    directory: Path
    instruction: str
    agent_seconds: float | None
    verifier_seconds: float
    verifier_env: dict[str, str]
    solution_env: dict[str, str]
    workdir: PurePosixPath
    env: dict[str, str]
    copies: list[tuple[list[str], str, PurePosixPath]]
    """Sources in ``environment/``, a destination, and the directory that it is relative to."""

    def copy_files(self, root: Path) -> None:
        """Make the files of the image below ``root``, as the Dockerfile copies them."""
        for directory in {self.workdir, PurePosixPath("/tmp"), PurePosixPath("/root")} - {PurePosixPath("/")}:
            place(root, directory).mkdir(parents=True, exist_ok=True)
        context = (self.directory / "environment").resolve()
        for patterns, destination, workdir in self.copies:
            target = place(root, workdir / destination)
            sources = [path for pattern in patterns for path in sorted(context.glob(pattern.strip("/") or "."))]
            if not sources:
                raise ContainerRequiredError(f"COPY {' '.join(patterns)}: there is no such file")
            for source in sources:
                if not source.resolve().is_relative_to(context):
                    raise ContainerRequiredError(f"COPY {source.name}: it lies outside of environment/")
                if source.is_dir():
                    shutil.copytree(source, target, dirs_exist_ok=True, symlinks=True)
                    continue
                is_into = destination.endswith(("/", ".")) or len(sources) > 1 or target.is_dir()
                file = target / source.name if is_into else target
                file.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, file)


def read_task(directory: Path) -> HarborTask:
    """Read the task in a directory; raise `ContainerRequiredError` where it needs a container."""
    config = tomllib.loads((directory / "task.toml").read_text(encoding="utf-8"))
    environment = config.get("environment", {})
    if reason := next(find_reasons(directory, config), None):
        raise ContainerRequiredError(reason)
    workdir, env, copies = read_dockerfile((directory / "environment" / "Dockerfile").read_text(encoding="utf-8"))
    verifier = config.get("verifier", {})
    return HarborTask(
        directory=directory,
        instruction=CANARY.sub("", (directory / "instruction.md").read_text(encoding="utf-8")).strip(),
        agent_seconds=config.get("agent", {}).get("timeout_sec"),
        verifier_seconds=float(verifier.get("timeout_sec", 600.0)),
        verifier_env=verifier.get("env", {}),
        solution_env=config.get("solution", {}).get("env", {}),
        workdir=PurePosixPath(environment.get("workdir") or workdir),
        env={**env, **environment.get("env", {})},
        copies=copies,
    )


def find_reasons(directory: Path, config: dict[str, Any]) -> Iterator[str]:
    """Yield the reasons why a task cannot run without a container, as far as its files and settings show."""
    environment, verifier = config.get("environment", {}), config.get("verifier", {})
    for name in CONTAINER_FILES:
        if (directory / "environment" / name).exists() or (directory / name).exists():
            yield f"it has {name}"
    for key in ("docker_image", "mcp_servers", "healthcheck", "gpus", "gpu_types", "tpu"):
        if environment.get(key):
            yield f"task.toml sets environment.{key}"
    if environment.get("os", "linux") != "linux":
        yield f"task.toml sets environment.os to {environment['os']}"
    for key in ("environment", "collect"):
        if verifier.get(key):
            yield f"task.toml sets verifier.{key}"
    if config.get("steps"):
        yield "it has several steps"
    for section in (environment, verifier, config.get("solution", {})):
        for name, value in section.get("env", {}).items():
            if "${" in str(value):
                yield f"the variable {name} is read from the host"
    for file in ("environment/Dockerfile", "tests/test.sh", "instruction.md"):
        if not (directory / file).is_file():
            yield f"it has no {file}"


def read_dockerfile(text: str) -> tuple[str, dict[str, str], list[tuple[list[str], str, PurePosixPath]]]:
    """Return working directory, variables and copies of a Dockerfile that runs nothing. Pure.

    Raises `ContainerRequiredError` for any other Dockerfile.
    """
    workdir, env, copies = PurePosixPath("/"), dict[str, str](), list[tuple[list[str], str, PurePosixPath]]()
    lines = re.sub(r"^\s*#.*\n?", "", text, flags=re.MULTILINE).replace("\\\n", " ").splitlines()
    num_images = 0
    for line in filter(None, map(str.strip, lines)):
        name, _, rest = line.partition(" ")
        words = shlex.split(rest)
        if "$" in rest:
            raise ContainerRequiredError(f"its Dockerfile has a variable: {line[:100]}")
        match name.upper():
            case "FROM" if num_images == 0 and len(words) == 1:
                num_images = 1
            case "WORKDIR":
                workdir = workdir / words[0]
            case "ENV" if all("=" in word for word in words):
                env |= dict(word.split("=", 1) for word in words)
            case "COPY" if len(words) > 1 and not rest.lstrip().startswith(("--", "[")):
                copies.append((words[:-1], words[-1], workdir))
            case "USER" if words == ["root"]:
                pass
            case "LABEL" | "CMD":
                pass
            case _:
                raise ContainerRequiredError(f"its Dockerfile does more than copy files: {line[:100]}")
    return str(workdir), env, copies


def place(root: Path, path: PurePosixPath) -> Path:
    """Map a path of the sandbox to a path below ``root``. Pure.

    Raises `ContainerRequiredError` for a path that belongs to this machine.
    """
    parts = path.parts[1:]
    if ".." in parts or (parts and parts[0] in HOST_DIRECTORIES) or path == PurePosixPath("/"):
        raise ContainerRequiredError(f"its Dockerfile writes to {path}")
    return root.joinpath(*parts)
