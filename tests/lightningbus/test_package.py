"""The distributions: built without a warning, complete, and enough to work with from an empty directory."""

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import threading
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import urljoin

import pytest
import yaml

from tests.commands import ROOT, environment

pytestmark = [pytest.mark.e2e, pytest.mark.main_job, pytest.mark.timeout(1800)]

PACKAGE = "lightningbus"
OF_EXTRAS = ("lightningbus.trackers.",)
"""Modules here import packages of extras that the lock lacks."""
SECONDS = 600
BUILD = """
import sys
from setuptools import build_meta
print(getattr(build_meta, sys.argv[1])(sys.argv[2]))
"""
IMPORT_ALL = """
import importlib, pkgutil
import lightningbus
print(lightningbus.__file__)
for found in pkgutil.walk_packages(lightningbus.__path__, "lightningbus."):
    # The command itself, and files that are copied beside a run file and read what lies there.
    if found.name == "lightningbus.__main__" or found.name.startswith("lightningbus.environments."):
        continue
    try:
        importlib.import_module(found.name)
    except ModuleNotFoundError as error:
        print("missing", found.name, error.name)
"""


def tracked_files() -> list[str]:
    """The files of this repository, by their paths, links to directories left out."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def files_of_the_package() -> set[str]:
    """What each distribution has to hold: what is in the package, by links too."""
    linked = {path.name for path in (ROOT / PACKAGE).iterdir() if path.is_symlink()}
    files = set()
    for name in tracked_files():
        top = PurePosixPath(name).parts[0]
        if top in linked or top == PACKAGE:
            files.add(f"{PACKAGE}/{name}" if top in linked else name)
    return files


@dataclass(frozen=True)
class Built:
    """The distributions, and what was said while they were made."""

    sdist: Path
    wheel: Path
    output: str


def build(hook: str, sources: Path, target: Path) -> tuple[Path, str]:
    """Call a hook of the build backend, as `python -m build` does."""
    env = {name: value for name, value in environment().items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", BUILD, hook, str(target)]
    done = subprocess.run(command, cwd=sources, env=env, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return target / done.stdout.splitlines()[-1], done.stdout + done.stderr


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """An sdist of the tracked files, and a wheel of what is in the sdist."""
    directory = tmp_path_factory.mktemp("built")
    for name in tracked_files():
        target = directory / "sources" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target)
    for link in (path for path in (ROOT / PACKAGE).iterdir() if path.is_symlink()):
        (directory / "sources" / PACKAGE / link.name).symlink_to(link.readlink())
    sdist, first = build("build_sdist", directory / "sources", directory)
    with tarfile.open(sdist) as archive:
        archive.extractall(directory / "unpacked", filter="data")
    (unpacked,) = (directory / "unpacked").iterdir()
    wheel, second = build("build_wheel", unpacked, directory)
    return Built(sdist, wheel, first + second)


@pytest.fixture(scope="module")
def installed(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the wheel and the packages of this one, but not the checkout.

    A ``.pth`` file names the folder of these packages; Python does not read the ``.pth`` files in there, so the
    checkout that is installed here is not found.
    """
    directory = tmp_path_factory.mktemp("installed")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True, timeout=SECONDS)
    python = directory / "bin" / "python"
    options = ["--quiet", "--no-index", "--no-deps", "--disable-pip-version-check"]
    install = [sys.executable, "-m", "pip", "--python", python, "install", *options, built.wheel]
    subprocess.run(install, check=True, timeout=SECONDS)
    (packages,) = directory.glob("lib/python*/site-packages")
    (packages / "packages.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


@pytest.fixture(scope="module")
def project(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A first project of the installed package, trained for two steps."""
    directory = tmp_path_factory.mktemp("elsewhere")
    run(installed, "init", "first", directory=directory)
    project = directory / "first"
    make = [installed, "-c", "import model; model.STEPS = 30; model.main()"]
    subprocess.run(make, cwd=project, env=of_a_stranger(installed), check=True, timeout=SECONDS)
    settings = yaml.safe_load((project / "run.yaml").read_text())
    settings["learner"] |= {"max_steps": 2, "groups_per_step": 2, "group_size": 4}
    settings["eval"] |= {"every": 1, "sampling": ["greedy"]}
    heldout = (project / "heldout.jsonl").read_text().splitlines(keepends=True)
    (project / "heldout.jsonl").write_text("".join(heldout[:4]))
    (project / "run.yaml").write_text(yaml.safe_dump(settings))
    run(installed, "train", "-c", "run.yaml", directory=project)
    return project


def of_a_stranger(python: Path) -> dict[str, str]:
    """Variables of somebody who knows nothing of this checkout; programs of packages are found on the path."""
    env = {name: value for name, value in environment().items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return env | {"PATH": f"{python.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}", "HF_HUB_OFFLINE": "1"}


def run(python: Path, *arguments: str, directory: Path) -> str:
    """What a command says that ends well."""
    done = subprocess.run(
        [python.parent / "lightningbus", *arguments],
        cwd=directory,
        env=of_a_stranger(python),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    logs = "".join(path.read_text()[-1500:] for path in directory.glob("runs/*/logs/*.log"))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:] + logs
    return done.stdout + done.stderr


@contextmanager
def started(python: Path, *arguments: str, directory: Path, until: str) -> Iterator[str]:
    """A command that has said ``until``, with the line in which it did; it is stopped at the end of the block."""
    process = subprocess.Popen(
        [python.parent / "lightningbus", *arguments],
        cwd=directory,
        env=of_a_stranger(python),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    timer = threading.Timer(SECONDS, process.kill)
    timer.start()
    try:
        lines: list[str] = []
        for line in process.stderr:
            lines.append(line)
            if until in line:
                break
        else:
            raise AssertionError(f"it ended with {process.wait()}: {''.join(lines)[-3000:]}")
        yield line
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=SECONDS)
        timer.cancel()


def test_nothing_is_warned_of_while_the_distributions_are_made(built: Built) -> None:
    assert [line for line in built.output.splitlines() if "warning:" in line.lower()] == []


def test_the_wheel_has_the_tracked_files_of_one_package_and_no_others(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert {PurePosixPath(name).parts[0] for name in names} == {PACKAGE}
    assert names == files_of_the_package() and len(names) > 500


def test_the_sdist_has_what_the_wheel_is_made_of(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        names = {str(PurePosixPath(*PurePosixPath(each.name).parts[1:])) for each in archive if each.isfile()}
    built_files = {"PKG-INFO", "setup.cfg"} | {name for name in names if name.startswith("lightningbus.egg-info/")}
    beside = {"pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "AGENTS.md", "CHANGELOG.md", "SECURITY.md"}
    beside |= {name for name in tracked_files() if name.startswith(("deploy/", "docs/", "requirements/"))}
    assert names - built_files == files_of_the_package() | beside


def test_no_package_of_the_repository_is_forgotten() -> None:
    without = {str(path.parent) for name in files_of_the_package() if (path := PurePosixPath(name)).suffix == ".py"}
    without = {name for name in without if not (ROOT / name / "__init__.py").exists()}
    assert {
        name for name in without if not name.startswith(("lightningbus/templates/", "lightningbus/examples/"))
    } == set()


def test_every_module_of_the_installed_package_can_be_imported(installed: Path, tmp_path: Path) -> None:
    command = [installed, "-P", "-c", IMPORT_ALL]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=of_a_stranger(installed),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    place, *lines = done.stdout.splitlines()
    assert Path(place).is_relative_to(installed.parents[1])
    missing = [line.split()[1:] for line in lines if line.startswith("missing ")]
    assert len(missing) == len(lines)
    assert [each for each in missing if not each[0].startswith(OF_EXTRAS)] == []
    assert [name for _, name in missing if name.partition(".")[0] == PACKAGE] == []


def test_the_doctor_finds_the_installed_package_complete(installed: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [installed.parent / "lightningbus", "doctor"],
        cwd=tmp_path,
        env=of_a_stranger(installed),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert "ok      lightningbus: complete\n" in done.stdout, done.stdout + done.stderr


def test_the_installed_package_trains_a_first_project(installed: Path, project: Path) -> None:
    steps = run(installed, "query", "--json", "SELECT count() AS n FROM training_steps", directory=project)
    assert yaml.safe_load(steps)[0]["n"] == 2
    assert (project / "runs" / "first" / "results.json").exists()


def test_all_that_lies_in_the_directory_of_a_run_is_documented(project: Path) -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    (table,) = re.findall(r"### What lies in `runs/NAME`\n\n(.+?)\n\n", page, re.S)
    documented = {name for row in table.splitlines() for name in re.findall(r"`([^`]+)`", row.split("|")[1])}
    assert {each.name for each in (project / "runs" / "first").iterdir()} <= documented


def test_the_installed_package_exports_the_best_version(installed: Path, project: Path) -> None:
    results = yaml.safe_load((project / "runs" / "first" / "results.json").read_text())
    evaluations = [(each["mean_reward"], each["version"]) for each in results["evaluations"]]
    listed = yaml.safe_load(run(installed, "weights", "list", "--json", "--run", "first", directory=project))
    assert {each["version"]: each["exportable"] for each in listed} == dict.fromkeys((2, 1, 0), "yes")
    assert f"version {max(evaluations)[1]} of run first is in best" in run(
        installed, "weights", "export", "--best", "best", directory=project
    )
    assert (project / "best" / "model.safetensors").exists()


def test_the_installed_package_shows_the_page(installed: Path, project: Path) -> None:
    with started(installed, "ui", "--port", "0", directory=project, until="UI at ") as line:
        url = line.split()[-1]
        page, script, runs = (
            urllib.request.urlopen(urljoin(url, path), timeout=SECONDS).read().decode()
            for path in ("/", "/static/vendor/uPlot.esm.js", "/api/runs")
        )
    assert "<html" in page and "uPlot" in script and '"first"' in runs


def test_the_demo_of_the_installed_package_starts(installed: Path, tmp_path: Path) -> None:
    with started(installed, "demo", "--model", "tiny", directory=tmp_path, until="making a small model"):
        work = tmp_path / "runs" / "demo" / "work"
        assert (work / "train.jsonl").exists() and (work / "heldout.jsonl").exists()
