"""The locks pin every package to one version and its hashes, the same wherever several have it."""

import re
import sys
from importlib import util
from pathlib import Path
from types import ModuleType

import pytest

from lightningbus.run.machine import checks as machine_checks
from tests.commands import ROOT

REQUIREMENTS = ROOT / "requirements"
LOCKS = sorted(path.stem for path in REQUIREMENTS.glob("*.lock"))
PINNED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[\w,-]+\])?==([A-Za-z0-9.+!_-]+)(?: ; .+)?")
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")
OF_THE_MACHINE = {"vllm", "torch", "torchaudio", "torchvision", "triton", "setuptools", "apache-tvm-ffi"}
"""vLLM for CPU and for GPU, and what each of the two pins by itself."""
PACKAGES = {
    "cpu": 100,
    "gpu": 100,
    "learner-gpu": 100,
    "inference-gpu": 100,
    "runner": 20,
    "store": 30,
    "tools": 20,
    "docs": 20,
}
"""The locks, each with fewer packages than it has."""


def pins(name: str) -> dict[str, tuple[str, list[str]]]:
    """Version and hashes of each package of a lock."""
    text = (REQUIREMENTS / f"{name}.lock").read_text().replace("\\\n", " ")
    packages: dict[str, tuple[str, list[str]]] = {}
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        requirement, *hashes = re.split(r"\s+(?=--hash=)", line.strip())
        pin = PINNED.fullmatch(requirement.strip())
        assert pin is not None, f"{requirement} is not pinned to one version"
        package = re.sub(r"[-_.]+", "-", pin[1]).lower()
        assert package not in packages, f"{package} is pinned twice"
        packages[package] = (pin[2], hashes)
    return packages


def script(path: str) -> ModuleType:
    """A script of the repository, as a module."""
    spec = util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None and spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_locks_are_those_that_are_installed() -> None:
    assert set(LOCKS) == set(PACKAGES)


@pytest.mark.parametrize("name", PACKAGES)
def test_every_package_is_pinned_once_and_has_its_hashes(name: str) -> None:
    packages = pins(name)
    assert len(packages) > PACKAGES[name]
    without = [
        package for package, (_, hashes) in packages.items() if not hashes or not all(map(HASH.fullmatch, hashes))
    ]
    assert without == []


@pytest.mark.parametrize("other", ["gpu", "runner", "store"])
def test_what_two_locks_hold_is_the_same(other: str) -> None:
    cpu, others = pins("cpu"), pins(other)
    shared = cpu.keys() & others.keys() - OF_THE_MACHINE
    assert shared and {package for package in shared if cpu[package] != others[package]} == set()


def test_the_lock_of_a_learner_is_that_of_a_machine_with_a_gpu_without_the_engine() -> None:
    """It is resolved with torch: so the other lock, which leaves torch out, has what this torch pins too."""
    whole, learner = pins("gpu"), pins("learner-gpu")
    assert learner.keys() - whole.keys() == {"torch"} and "vllm" not in learner and "triton" in learner
    assert {package for package in learner.keys() & whole.keys() if learner[package] != whole[package]} == set()
    assert f"torch=={learner['torch'][0]}" in (ROOT / "Makefile").read_text()


def test_the_lock_of_a_node_has_an_engine_and_no_trainer() -> None:
    node = pins("inference-gpu")
    assert {"vllm", "torch", "nats-py", "safetensors", "obstore"} <= node.keys() and "verl" not in node


def test_the_page_of_versions_is_what_the_locks_install_and_what_ran_with_them() -> None:
    versions = script("requirements/versions.py")
    page = (ROOT / "docs" / "versions.md").read_text()
    table = page.split("<!-- versions: begin -->\n")[1].split("\n<!-- versions: end -->")[0]
    assert table == versions.render(), "python requirements/versions.py prints it"
    assert {f"`{name}.lock`" for name in {*PACKAGES} - {"tools", "docs"}} == set(re.findall(r"`[a-z-]+\.lock`", table))
    assert "make test-all" in (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    for package, (_, tested) in machine_checks.PACKAGES.items():
        if package in versions.PACKAGES:
            assert versions.read_versions("cpu")[package] == tested


def test_a_run_on_a_gpu_counts_for_the_versions_that_it_had() -> None:
    describe = script("requirements/versions.py").describe_tests
    run = {"machine": {"gpu": "a GPU", "versions": {"vllm": "0.31.0", "torch": "2.13.0+cu130"}}}
    assert describe("gpu", {"vllm": "0.31.0", "torch": "2.13.0"}, run) == "`make gpu` on a GPU"
    assert describe("gpu", {"vllm": "0.33.0", "torch": "2.13.0"}, run) == "resolved, not run"
    assert describe("gpu", {"vllm": "0.31.0"}, None) == describe("learner-gpu", {}, run) == "resolved, not run"


def test_no_lock_is_installed_without_its_hashes() -> None:
    """By `make`, by the images, by the pages; torch alone comes from the index of its machine where a lock lacks it."""
    texts = [
        (ROOT / path).read_text()
        for path in ("Makefile", "deploy/Dockerfile", "docs/deployment.md", "docs/versions.md")
    ]
    commands = [
        part for text in texts for part in re.split(r"\n|&&", text) if re.search(r"pip install.*(-r|--req)", part)
    ]
    assert len(commands) >= 6
    assert [command for command in commands if "--require-hashes" not in command] == []
    assert {name for name in PACKAGES if "torch" in pins(name)} == {"learner-gpu", "inference-gpu"}


def test_an_audit_that_looked_up_nothing_does_not_pass() -> None:
    """pip-audit itself ends with 0 there, and says that it knows of no vulnerability."""
    verdict = script("requirements/audit.py").verdict
    clean = {"name": "a", "version": "1", "vulns": []}
    vulnerable = {"name": "b", "version": "2", "vulns": [{"id": "PYSEC-1"}]}
    skipped = {"name": "c", "skip_reason": "Dependency not found on PyPI and could not be audited: c (3)"}
    assert verdict({"dependencies": [clean]}) == (0, "no known vulnerability; 1 of 1 packages were looked up")
    code, sentence = verdict({"dependencies": [clean, skipped]})
    assert code == 3 and sentence.startswith(
        "not audited: 1 of 2 packages were looked up, for one: Dependency not found"
    )
    code, sentence = verdict({"dependencies": [vulnerable, skipped]})
    assert code == 1 and sentence.startswith("known vulnerabilities in b 2; ")
    assert verdict({"dependencies": []})[0] == 3


@pytest.mark.integration
def test_an_audit_without_pip_audit_is_no_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A program that ends without a report: its last words, and another exit code than a clean audit's."""
    main = script("requirements/audit.py").main
    program = tmp_path / "pip-audit"
    program.write_text("#!/bin/sh\necho no network >&2\nexit 1\n")
    program.chmod(0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", str(tmp_path / "python"))
        assert main("cpu.lock") == 3
    assert "cpu.lock: not audited: pip-audit ended with 1: no network" in capsys.readouterr().out


def test_every_image_of_others_is_one_that_can_be_pinned() -> None:
    """Each is found and gets its digest, also where it has an older one; what we build ourselves is left alone."""
    pin = script("deploy/pin_images.py")
    images: list[str] = []

    def digest_of(image: str) -> str:
        images.append(image)
        return f"sha256:{len(images):064x}"

    for file in pin.files():
        text = file.read_text()
        first = pin.pinned(text, digest_of)
        assert re.sub(r"@sha256:[0-9a-f]{64}", "", first) == re.sub(r"@sha256:[0-9a-f]{64}", "", text)
        assert pin.pinned(first, lambda _: f"sha256:{0:064x}").count("@sha256:") == first.count("@sha256:")
    names = {image.partition(":")[0] for image in images}
    assert names == {
        "nats", "clickhouse/clickhouse-server", "otel/opentelemetry-collector-contrib", "grafana/grafana", "python",
    }  # fmt: skip
