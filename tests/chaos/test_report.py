"""The table of faults in `docs/guarantees.md` is the one `make chaos` measured; what it lacks is named there."""

import json

import pytest

from tests.chaos.__main__ import PAGE, RESULTS
from tests.chaos.report import filled, markdown
from tests.chaos.scenarios import SCENARIOS

pytestmark = pytest.mark.unit


def test_the_page_shows_what_was_measured_last() -> None:
    actual = json.loads(RESULTS.read_text())
    assert actual.keys() <= SCENARIOS.keys()
    for item in actual.values():
        assert item["good"] and not any(row["lost"] or row["duplicated"] for row in item["faults"])
    assert PAGE.read_text() == filled(PAGE.read_text(), markdown(actual, SCENARIOS)), (
        "run `make chaos`, or undo the edit"
    )
