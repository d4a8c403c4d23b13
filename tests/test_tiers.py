"""Each test has one tier, and a unit test cannot start a process."""

import subprocess
import sys
from pathlib import PurePath

import pytest

from tests.tiers import E2E, INTEGRATION, UNIT, ProcessStartedError, tier_of


@pytest.mark.parametrize(
    ("path", "fixtures", "markers", "tier"),
    [
        ("learner/test_credit.py", ["tmp_path"], [], UNIT),
        ("bus/test_bus.py", ["tmp_path", "bus"], [], INTEGRATION),
        ("bus/test_bus.py", ["bus"], ["e2e", "timeout"], E2E),
        ("e2e/test_loop.py", ["e2e"], [], E2E),
        ("chaos/test_report.py", [], ["unit"], UNIT),
    ],
)
def test_a_test_has_the_tier_of_its_marker_folder_or_fixtures(
    path: str, fixtures: list[str], markers: list[str], tier: str
) -> None:
    assert tier_of(PurePath(path), fixtures, markers) == tier


def test_a_unit_test_that_starts_a_process_fails() -> None:
    with pytest.raises(ProcessStartedError, match="mark it `integration`"):
        subprocess.run([sys.executable, "-c", ""], check=False)
