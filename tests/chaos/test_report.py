"""The table of faults in `docs/guarantees.md` is the one `make chaos` measured; what it lacks is named there."""

import json

import pytest

from tests.chaos.__main__ import PAGE, RESULTS
from tests.chaos.report import filled, markdown
from tests.chaos.scenarios import SCENARIOS

pytestmark = pytest.mark.unit


def test_the_page_shows_what_was_measured_last() -> None:
    found = json.loads(RESULTS.read_text())
    assert found.keys() <= SCENARIOS.keys()
    for one in found.values():
        assert one["good"] and not any(row["lost"] or row["duplicated"] for row in one["faults"])
    assert PAGE.read_text() == filled(PAGE.read_text(), markdown(found, SCENARIOS)), (
        "run `make chaos`, or undo the edit"
    )
