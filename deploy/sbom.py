"""``make sbom``: write what each lock installs, and torch beside it, as an SBOM in the form of CycloneDX."""

import argparse
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCKS = ("cpu", "gpu", "inference-gpu", "learner-gpu", "runner", "store")
"""Locks of ``requirements/`` that a role is installed from."""
TORCH = re.compile(r"torch==\S+")


def list_requirements(lock: str, makefile: str) -> str:
    """Return the text of a lock, with torch where it leaves out what its vLLM needs.

    ``makefile`` has the version that is installed apart. Pure.
    """
    needs_torch = re.search(r"^vllm", lock, re.M) and not re.search(r"^torch==", lock, re.M)
    (version,) = set(TORCH.findall(makefile))
    return f"{lock}\n{version}\n" if needs_torch else lock


def write_sbom(name: str, out: Path) -> Path:
    """Write ``sbom-NAME.json`` of one lock into a directory, the same bytes each time; return its path."""
    path = out / f"sbom-{name}.json"
    text = list_requirements((ROOT / "requirements" / f"{name}.lock").read_text(), (ROOT / "Makefile").read_text())
    no_graph = "ignore:The Component this BOM is describing"  # a lock does not say which package needs which
    command = [sys.executable, "-W", no_graph, "-m", "cyclonedx_py", "requirements", "--output-reproducible"]
    options = ["--pyproject", str(ROOT / "pyproject.toml"), "--output-file", str(path), "-"]
    subprocess.run([*command, *options], input=text, text=True, check=True)
    return path


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the SBOM of each lock, and print the paths."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="directory for the files")
    out: Path = parser.parse_args(arguments).out
    out.mkdir(parents=True, exist_ok=True)
    for name in LOCKS:
        print(write_sbom(name, out))


if __name__ == "__main__":
    main()
