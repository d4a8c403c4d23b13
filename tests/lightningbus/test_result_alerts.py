"""Alerts of a run's learners in its results."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

import lightningbus as lb
from lightningbus.cli.app import app
from lightningbus.run.errors import UserError
from lightningbus.run.results.results import ALERTS
from lightningbus.run.results.train_result import find_warnings
from lightningbus.run.run_directory.directory import RunDirectory
from lightningbus.schemas import fleet
from lightningbus.schemas.tasks import TaskBatchRecord
from tests import seed_store
from tests.store.conftest import prepared

SENTENCE = "learner of policy: nothing is learned: the gradient of the last steps is 0"


def alerts_of(first_ns: int) -> list[fleet.Alert]:
    """An open alert of a learner, and one of a runner that is over."""
    return [
        fleet.Alert(role="learner", reason=SENTENCE, fired_at_ns=first_ns),
        fleet.Alert(role="runner", reason="no runner is there", fired_at_ns=first_ns + 1),
        fleet.Alert(role="runner", reason="no runner is there", resolved=True, fired_at_ns=first_ns + 2),
    ]


@pytest.mark.integration
def test_results_have_the_alerts_of_learners_once_and_print_them(tmp_path: Path) -> None:
    events = list(seed_store.run("first", steps=1))
    now_ns = seed_store.START_NS + 10**12
    (later,) = [
        event for event in seed_store.run("second", steps=1, groups=1, samples=1) if isinstance(event, TaskBatchRecord)
    ]
    span = replace(later.tasks[0].span, start_ns=now_ns + 10**12)
    later = replace(later, tasks=(replace(later.tasks[0], span=span),))
    alerts = [
        fleet.Alert(role="learner", reason="of a run before", fired_at_ns=1),
        fleet.Alert(role="learner", reason="of a run after", fired_at_ns=now_ns + 2 * 10**12),
        fleet.Alert(role="learner", reason=SENTENCE, fired_at_ns=now_ns),
        fleet.Alert(role="learner", reason=SENTENCE, resolved=True, fired_at_ns=now_ns + 1),
        fleet.Alert(role="learner", reason=SENTENCE, fired_at_ns=now_ns + 2),
        fleet.Alert(role="runner", reason="no runner is there", fired_at_ns=now_ns + 3),
    ]
    with prepared(tmp_path / "store") as store:
        seed_store.insert(store.sql, [*events, later, *alerts])
        rows = store.sql.query(ALERTS, parameters={"run_id": "first"}).result_rows
    assert [tuple(row) for row in rows] == [(SENTENCE,)]
    assert list(find_warnings({"alerts": [SENTENCE]})) == [SENTENCE]


@pytest.mark.integration
def test_alerts_of_an_ended_run_are_read_by_status_and_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lightningbus.run.run_directory.discovery.DEFAULT_URL", "nats://127.0.0.1:1")
    directory = RunDirectory(Path("runs/first")).create()
    (directory.path / "bus" / "jetstream").mkdir(parents=True)
    with prepared(directory.path / "store") as store:
        seed_store.insert(store.sql, [*seed_store.run("first", steps=1), *alerts_of(seed_store.START_NS + 10**12)])
    done = CliRunner().invoke(app, ["status"])
    assert done.exit_code == 2 and "run 'first' has ended" in done.output
    assert f"ALERT  {SENTENCE}\n" in done.output and "OVER   no runner is there\n" in done.output
    with lb.connect() as session:
        assert [(row["role"], row["reason"], row["is_over"]) for row in session.alerts()] == [
            ("learner", SENTENCE, False),
            ("runner", "no runner is there", True),
        ]
        with pytest.raises(UserError, match="'nobody'"):
            session.alerts("nobody")
