"""The notebooks run from the first cell to the last, and git holds them without outputs."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.commands import ROOT
from tests.commands import environment as variables
from tests.examples.conftest import environment as environment

pytestmark = pytest.mark.e2e

NOTEBOOKS = ROOT / "examples" / "notebooks"
CALCULATOR = ROOT / "examples" / "calculator"


def run(name: str, directory: Path, parameters: str, kernels: Path) -> list[dict[str, Any]]:
    """The outputs of a notebook's cells, in order; the notebook with them lies in the directory."""
    command = [kernels / ".venv/bin/python", ROOT / "tests/api/run_notebook.py", NOTEBOOKS / name, name, parameters]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"  # nats-server lies there
    env = variables() | {"IPYTHONDIR": str(directory / ".ipython"), "PATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=directory, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    cells = json.loads((directory / name).read_text())["cells"]
    return [output for cell in cells for output in cell.get("outputs", ())]


def html_of(outputs: list[dict[str, Any]]) -> str:
    return "".join("".join(output.get("data", {}).get("text/html", "")) for output in outputs)


def test_what_did_my_agent_learn(seeded: Path, tmp_path: Path, environment: Callable[[str], Path]) -> None:
    outputs = run("what_did_my_agent_learn.ipynb", tmp_path, f"RUNS = {str(seeded)!r}", environment("notebooks"))
    html = html_of(outputs)
    for text in ("first", "agent_error", "effective_sample_size", "question t", "ValueError: no number"):
        assert text in html
    assert html.count("data:image/png;base64,") == 1
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 1


@pytest.mark.slow
def test_train_in_ten_cells(tmp_path: Path, environment: Callable[[str], Path]) -> None:
    (tmp_path / "calculator").symlink_to(CALCULATOR)
    (tmp_path / "notebooks").mkdir()
    parameters = "STEPS, GROUPS, WARM_STEPS, NUM_TRAIN, NUM_HELDOUT = 2, 2, 60, 8, 4"
    outputs = run("train_in_ten_cells.ipynb", tmp_path / "notebooks", parameters, environment("notebooks"))
    html = html_of(outputs)
    assert "held-out reward" in html and "3 weight versions" in html and "0 lost, 0 trained twice" in html
    assert "data:image/png;base64," in html
    notebook = json.loads((tmp_path / "notebooks" / "train_in_ten_cells.ipynb").read_text())
    widgets = notebook["metadata"]["widgets"]["application/vnd.jupyter.widget-state+json"]["state"].values()
    (bar,) = (widget["state"] for widget in widgets if widget["model_name"] == "FloatProgressModel")
    assert (bar["value"], bar["max"], bar["bar_style"]) == (2, 2, "success"), "the bar reached the last step"
    plain = "".join("".join(output.get("data", {}).get("text/plain", "")) for output in outputs)
    assert "\x1b" not in plain


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_train_in_ten_cells_learns(tmp_path: Path, environment: Callable[[str], Path]) -> None:
    (tmp_path / "calculator").symlink_to(CALCULATOR)
    (tmp_path / "notebooks").mkdir()
    outputs = run("train_in_ten_cells.ipynb", tmp_path / "notebooks", "", environment("notebooks"))
    assert "37 weight versions" in html_of(outputs)
    results = json.loads((tmp_path / "notebooks" / "runs" / "calculator" / "results.json").read_text())
    assert results["rollouts_lost"] == 0 and results["greedy_after"] > results["greedy_before"] + 0.3


@pytest.mark.unit
@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_git_holds_no_outputs(path: Path) -> None:
    cells = json.loads(path.read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert not [cell for cell in code if cell["outputs"] or cell["execution_count"]]
    assert "ten" not in path.stem or len(code) == 10
