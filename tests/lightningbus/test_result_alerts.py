"""Alerts of a run's learners in its results."""

from pathlib import Path

import pytest

from lightningbus.run.results.results import ALERTS
from lightningbus.run.results.train_result import find_warnings
from lightningbus.schemas import fleet
from tests import seed_store
from tests.store.conftest import prepared

SENTENCE = "learner of policy: nothing is learned: the gradient of the last steps is 0"


@pytest.mark.integration
def test_results_have_the_alerts_of_learners_once_and_print_them(tmp_path: Path) -> None:
    events = list(seed_store.run("first", steps=1))
    now_ns = seed_store.START_NS + 10**12
    alerts = [
        fleet.Alert(role="learner", reason="of a run before", fired_at_ns=1),
        fleet.Alert(role="learner", reason=SENTENCE, fired_at_ns=now_ns),
        fleet.Alert(role="learner", reason=SENTENCE, resolved=True, fired_at_ns=now_ns + 1),
        fleet.Alert(role="learner", reason=SENTENCE, fired_at_ns=now_ns + 2),
        fleet.Alert(role="runner", reason="no runner is there", fired_at_ns=now_ns + 3),
    ]
    with prepared(tmp_path / "store") as store:
        seed_store.insert(store.sql, [*events, *alerts])
        rows = store.sql.query(ALERTS, parameters={"run_id": "first"}).result_rows
    assert [tuple(row) for row in rows] == [(SENTENCE,)]
    assert list(find_warnings({"alerts": [SENTENCE]})) == [SENTENCE]
