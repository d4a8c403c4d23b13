"""The library of faults: each is named, met elsewhere, and acts in one place."""

import re
from pathlib import Path

import pytest

from tests.serving_faults.catalogue import FAULTS, SWITCH_VARIABLE, acts

HERE = Path(__file__).resolve().parents[1] / "serving_faults"


def test_every_fault_was_met_elsewhere() -> None:
    assert len(FAULTS) == len({fault.name for fault in FAULTS}) == 12
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", fault.met_in) for fault in FAULTS)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_acts_in_its_process(fault: object) -> None:
    name, process = fault.name, fault.process  # type: ignore[attr-defined]
    assert f'acts("{name}")' in (HERE / f"{process}.py").read_text()


def test_one_fault_acts_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    switch = tmp_path / "fault"
    monkeypatch.setenv(SWITCH_VARIABLE, str(switch))
    assert not any(acts(fault.name) for fault in FAULTS)
    switch.write_text(FAULTS[3].name)
    assert [fault.name for fault in FAULTS if acts(fault.name)] == [FAULTS[3].name]
