"""A task of Harbor as one in a workspace, graded by its own tests; and why no workspace can have it."""

import re
import secrets
import shlex
import shutil
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

HOST_DIRECTORIES = {
    "bin", "dev", "etc", "home", "lib", "lib32", "lib64", "proc", "sbin", "sys", "tmp", "usr", "workspace",
}  # fmt: skip
"""Directories of the root that a sandbox has from this machine; no file can be copied into them."""
FOREIGN_FILES = ("docker-compose.yaml", "docker-compose.yml", "singularity-compose.yaml", "steps")
"""Files of a task that ask for several containers or steps."""
CANARY = re.compile(r"\A(?:(?:<!--.*canary.*-->|#.*canary.*)\n)+\s*", re.IGNORECASE)


HIDDEN = "hidden"
GRADE = """mkdir -p /logs/verifier /logs/agent /logs/artifacts
mv "$WORKSPACE/{tests}" /tests
bash /tests/test.sh > /tmp/tests.log 2>&1
status=$?
cd /logs/verifier
if [ -f reward.json ]; then cp reward.json "$RESULT_FILE"
elif [ -f reward.txt ]; then printf '{{"reward": %s}}' "$(cat reward.txt)" > "$RESULT_FILE"
else echo "it wrote neither reward.json nor reward.txt to $PWD (status $status: $(tail -n 1 /tmp/tests.log))"; fi
"""
SOLVE = """{setup}
ln -s {{path}} /solution
bash /solution/solve.sh > /tmp/solve.log 2>&1
echo "\\"status $?: $(tail -n 1 /tmp/solve.log | tr -cd '[:print:]' | tr -d '\\"\\\\' | cut -c -300)\\""
"""
Copies = list[tuple[list[str], PurePosixPath, bool]]
"""Sources below ``environment/``, a destination, and whether that is a directory."""


class HarborTaskError(ValueError):
    """A task needs a feature that is not there; the message names it."""


def convert_task(folder: Path, sources: Path, image: str, has_containers: bool) -> tuple[dict[str, Any], str]:
    """Write the files of a task and of its grader; return its line, and a script that solves it, if it has one.

    ``image``: an image that was built by its Dockerfile; default: the one that it names, if it may have a container.
    Raises `HarborTaskError` where no workspace can have it.
    """
    config = tomllib.loads((folder / "task.toml").read_text(encoding="utf-8"))
    environment, verifier = config.get("environment", {}), config.get("verifier", {})
    image = image or (environment.pop("docker_image", "") if has_containers else "")
    if reason := next(find_reasons(folder, config), None):
        raise HarborTaskError(reason)
    workdir, env, copies = "", dict[str, str](), Copies()
    if not image:
        workdir, env, copies = read_dockerfile((folder / "environment" / "Dockerfile").read_text(encoding="utf-8"))
    workdir = environment.get("workdir") or workdir
    files = {"image": image, "workdir": workdir} if image else {"directory": folder.name}
    setup = [f"cd {shlex.quote(workdir)}"] if workdir else []
    if not image:
        roots = copy_files((folder / "environment").resolve(), sources / folder.name, PurePosixPath(workdir), copies)
        setup[:0] = [f'[ -e /{name} ] || ln -s "$WORKSPACE/{name}" /{name}' for name in roots]
    setup += export({**env, **environment.get("env", {})})
    tests = f".tests-{secrets.token_hex(8)}"  # no agent can have put a file there
    shutil.copytree(folder / "tests", sources / HIDDEN / folder.name / tests)
    script = "\n".join([*setup, *export(verifier.get("env", {})), GRADE.format(tests=tests)])
    grade = {
        "files": f"{HIDDEN}/{folder.name}", "command": ["/bin/bash", "-c", script], "needs_result": True,
        "timeout_seconds": float(verifier.get("timeout_sec", 600.0)),
    }  # fmt: skip
    inputs = {
        "prompt": CANARY.sub("", (folder / "instruction.md").read_text(encoding="utf-8")).strip(),
        "setup": "\n".join(setup), "seconds": config.get("agent", {}).get("timeout_sec"),
        "workspace": {**files, "grade": grade},
    }  # fmt: skip
    solve = SOLVE.format(setup="\n".join([*setup, *export(config.get("solution", {}).get("env", {}))]))
    return {"id": folder.name, "input": inputs}, solve if (folder / "solution" / "solve.sh").is_file() else ""


def export(variables: Mapping[str, str]) -> list[str]:
    """Build lines of a shell script that set variables. Pure."""
    return [f"export {name}={shlex.quote(str(value))}" for name, value in variables.items()]


def copy_files(context: Path, root: Path, workdir: PurePosixPath, copies: Copies) -> list[str]:
    """Make the files of an image below ``root``, as its Dockerfile copies them; return the names in it."""
    root.mkdir(parents=True)
    if workdir != PurePosixPath("/"):
        place(root, workdir).mkdir(parents=True, exist_ok=True)
    for patterns, destination, is_directory in copies:
        sources = [path for pattern in patterns for path in sorted(context.glob(pattern.strip("/") or "."))]
        if not sources:
            raise HarborTaskError(f"COPY {' '.join(patterns)}: there is no such file")
        target = place(root, destination)
        for source in sources:
            if not source.resolve().is_relative_to(context):
                raise HarborTaskError(f"COPY {source.name}: it lies outside of environment/")
            if source.is_dir():
                shutil.copytree(source, target, dirs_exist_ok=True, symlinks=True)
                continue
            file = target / source.name if is_directory or len(sources) > 1 or target.is_dir() else target
            file.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, file)
    return sorted(path.name for path in root.iterdir())


def find_reasons(directory: Path, config: dict[str, Any]) -> Iterator[str]:
    """Yield the reasons why no workspace can have a task, as far as its files and settings show."""
    environment, verifier = config.get("environment", {}), config.get("verifier", {})
    for name in FOREIGN_FILES:
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


def read_dockerfile(text: str) -> tuple[str, dict[str, str], Copies]:
    """Return working directory, variables and copies of a Dockerfile that runs nothing. Pure.

    Raises `HarborTaskError` for any other Dockerfile.
    """
    workdir, env, copies = PurePosixPath("/"), dict[str, str](), Copies()
    lines = re.sub(r"^\s*#.*\n?", "", text, flags=re.MULTILINE).replace("\\\n", " ").splitlines()
    num_images = 0
    for line in filter(None, map(str.strip, lines)):
        name, _, rest = line.partition(" ")
        words = shlex.split(rest)
        if "$" in rest:
            raise HarborTaskError(f"its Dockerfile has a variable: {line[:100]}")
        match name.upper():
            case "FROM" if num_images == 0 and len(words) == 1:
                num_images = 1
            case "WORKDIR":
                workdir = workdir / words[0]
            case "ENV" if all("=" in word for word in words):
                env |= dict(word.split("=", 1) for word in words)
            case "COPY" if len(words) > 1 and not rest.lstrip().startswith(("--", "[")):
                copies.append((words[:-1], workdir / words[-1], words[-1].endswith(("/", "."))))
            case "USER" if words == ["root"]:
                pass
            case "LABEL" | "CMD":
                pass
            case _:
                raise HarborTaskError(f"its Dockerfile does more than copy files: {line[:100]}")
    return str(workdir), env, copies


def place(root: Path, path: PurePosixPath) -> Path:
    """Map a path of the sandbox to a path below ``root``. Pure.

    Raises `HarborTaskError` for a path that belongs to this machine.
    """
    parts = path.parts[1:]
    if not parts or ".." in parts or parts[0] in HOST_DIRECTORIES:
        raise HarborTaskError(f"its Dockerfile writes to {path}")
    return root.joinpath(*parts)
