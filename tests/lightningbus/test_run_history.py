"""Rollouts of a recorded run that become a data set: the best ones, or those that a query names."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lightningbus.analysis.run_history import RunHistory
from lightningbus.run.errors import UserError
from tests.seed_store import insert, run
from tests.store.conftest import StoreProcess, prepared

BEST = "SELECT execution_id, reward FROM rollouts WHERE run_id = 'first' AND outcome = 'ok' ORDER BY rollout_id LIMIT 3"

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreProcess]:
    with prepared(tmp_path_factory.mktemp("store")) as built:
        insert(built.sql, run("first", steps=2, groups=2))
        yield built


def test_a_query_names_rollouts_in_its_order(store: StoreProcess) -> None:
    history = RunHistory.open(store.sql, "first")
    expected = [row[0] for row in store.sql.query(BEST).result_rows]
    rollouts = history.query_rollouts(BEST)
    assert [rollout.execution_id for rollout in rollouts] == expected and len(set(expected)) == 3
    assert all(call.model == "policy" for rollout in rollouts for call in rollout.calls)
    assert [each.execution_id for each in history.query_rollouts("SELECT 'no such' AS execution_id")] == []
    with pytest.raises(UserError, match="select the column execution_id"):
        history.query_rollouts("SELECT 1")


def test_the_settings_of_the_newest_step_name_the_model(store: StoreProcess) -> None:
    assert RunHistory.open(store.sql, "first").last_settings().model_path == Path("models/Qwen3-0.6B")
