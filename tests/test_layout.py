"""The layout: pure modules are under a contract, packages exist, and the checks of names and sentences are right."""

import ast
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.style.identifiers import bound_names, bound_names_of_script
from tests.style.sentences import mean_words, split_sentences

ROOT = Path(__file__).resolve().parents[1]
LINKS = {path.name for path in (ROOT / "lightningbus").iterdir() if path.is_symlink()}
"""Packages whose folders are at the top of the repository, and in the package by links."""


def python_files() -> Iterator[Path]:
    """Files of the package, by their paths in it."""
    for directory, _, names in os.walk(ROOT / "lightningbus", followlinks=True):
        yield from (Path(directory, name).relative_to(ROOT) for name in names if name.endswith(".py"))


def test_every_module_that_says_it_is_pure_is_under_a_contract() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    modules = [module for contract in contracts for module in contract.get("source_modules", ())]
    pure = set()
    for path in python_files():
        docstring = ast.get_docstring(ast.parse((ROOT / path).read_text())) or ""
        if "Pure." in docstring or "Pure:" in docstring or "Pure;" in docstring:
            pure.add(".".join(path.with_suffix("").parts).removesuffix(".__init__"))
    assert len(pure) > 40
    covered = {module for module in pure for source in modules if f"{module}.".startswith(f"{source}.")}
    assert pure - covered == set()


def test_the_top_level_has_the_folders_that_were_promised() -> None:
    assert {"bus", "runners", "learner", "inference", "schemas", "tests", "pyproject.toml", "README.md"} <= {
        path.name for path in ROOT.iterdir()
    }


def test_each_package_is_in_lightningbus_and_may_be_imported_from_there_alone() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {
        "lightningbus",
        "tests",
        "benchmarks",
        "experiments",
    }
    assert packages == LINKS
    banned = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]["flake8-tidy-imports"]
    assert set(banned["banned-api"]) == packages


@pytest.mark.integration
def test_the_old_form_of_an_import_is_refused(tmp_path: Path) -> None:
    for package in LINKS:
        (tmp_path / f"a_{package}.py").write_text(f"from {package} import settings as settings\n")
    command = [ROOT / ".venv" / "bin" / "ruff", "check", "--config", ROOT / "pyproject.toml", tmp_path]
    refused = subprocess.run([*command, "--output-format", "concise"], capture_output=True, text=True, check=False)
    assert refused.stdout.count("TID251") == len(LINKS)


def test_sentences_are_counted_without_code_tables_and_headings() -> None:
    prose = "# A heading\n\nTwo words. Three more words.\n\n- An item\n- Another `one two three` item\n\n"
    markdown = prose + "```sh\nx. Y\n```\n| a | b |\n"
    assert split_sentences(markdown) == ["Two words.", "Three more words.", "An item", "Another `one two three` item"]
    assert mean_words(markdown) == 2.5


def test_bound_names_are_those_a_module_gives() -> None:
    source = "def f(a, *, b):\n    said = a.told\n    self.held = 1\n    for one in b:\n        print(found)\n"
    assert {name for name, _ in bound_names(ast.parse(source))} == {"f", "a", "b", "said", "held", "one"}


def test_bound_names_of_a_script_are_its_declarations_and_parameters() -> None:
    script = "const said = rows.map((one) => one.told);\nfunction shown(a) { let made = a.found; }\n"
    assert {name for name, _ in bound_names_of_script(script)} == {"said", "one", "shown", "made"}


@pytest.mark.long
@pytest.mark.integration
def test_tests_are_collected_on_a_machine_with_no_optional_program(tmp_path: Path) -> None:
    """Skip tests of a browser, bubblewrap and the like where these are missing, and lose no other test."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:]
