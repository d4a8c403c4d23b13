"""The README's table of faults is the one `make chaos` measured."""

import json

from tests.chaos.__main__ import README, RESULTS
from tests.chaos.report import filled, markdown
from tests.chaos.scenarios import SCENARIOS


def test_the_readme_shows_what_was_measured_last() -> None:
    found = json.loads(RESULTS.read_text())
    assert found.keys() == SCENARIOS.keys()
    for one in found.values():
        assert one["good"] and not any(row["lost"] or row["duplicated"] for row in one["faults"])
    assert README.read_text() == filled(README.read_text(), markdown(found)), "run `make chaos`, or undo the edit"
