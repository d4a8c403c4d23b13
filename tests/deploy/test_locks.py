"""The locks pin every package to one version, the same wherever both have it."""

import re
from pathlib import Path

import pytest

REQUIREMENTS = Path(__file__).resolve().parents[2] / "requirements"
PINNED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[\w,-]+\])?==([A-Za-z0-9.+!_-]+)")
OF_THE_MACHINE = {"vllm", "torch", "torchaudio", "torchvision", "triton", "setuptools", "apache-tvm-ffi"}
"""vLLM for CPU and for GPU, and what each of the two pins by itself."""


def pins(name: str) -> list[tuple[str, str]]:
    """(package, version) of each line that is no comment."""
    lines = [line.strip() for line in (REQUIREMENTS / f"{name}.lock").read_text().splitlines()]
    found = [(line, PINNED.fullmatch(line)) for line in lines if line and not line.startswith("#")]
    assert [line for line, pin in found if pin is None] == [], "not pinned to one version"
    return [(re.sub(r"[-_.]+", "-", pin[1]).lower(), pin[2]) for _, pin in found if pin is not None]


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_every_package_is_pinned_once(name: str) -> None:
    packages = [package for package, _ in pins(name)]
    assert len(packages) == len(set(packages)) > 100


def test_what_both_hold_is_the_same() -> None:
    cpu, gpu = dict(pins("cpu")), dict(pins("gpu"))
    assert {name for name in cpu.keys() & gpu.keys() - OF_THE_MACHINE if cpu[name] != gpu[name]} == set()
