"""Rollouts of a recorded run that become a data set: the best ones, or those that a query names."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from lightningbus.analysis.replay import write_parquet
from lightningbus.analysis.run_history import RunHistory
from lightningbus.learner.preference_files import load_preferences
from lightningbus.run.errors import UserError
from tests.learner.conftest import tiny_model
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


def test_the_best_rollout_of_each_task_is_paired_with_the_worst(store: StoreProcess, tmp_path: Path) -> None:
    rewards = "SELECT task_id, groupArray(reward) FROM rollouts WHERE run_id = 'first' AND outcome = 'ok' GROUP BY 1"
    by_task = {
        task: [value for value in values if value is not None] for task, values in store.sql.query(rewards).result_rows
    }
    expected = {task: [max(values), min(values)] for task, values in by_task.items() if len(set(values)) > 1}
    rollouts, num_equal = RunHistory.open(store.sql, "first").paired_rollouts()
    assert len(rollouts) == 2 * len(expected) > 0 and num_equal == len(by_task) - len(expected)
    ids = []
    for best, worst in zip(rollouts[::2], rollouts[1::2], strict=True):
        assert best.task_id == worst.task_id and best.calls and worst.calls
        ids.append((best.id, worst.id))
        np.testing.assert_allclose([best.reward, worst.reward], expected.pop(best.task_id))
    write_parquet(tmp_path / "pairs.parquet", rollouts)
    pairs = load_preferences(tmp_path / "pairs.parquet", tiny_model(tmp_path / "model", vocab_size=200_000))
    assert [(pair.chosen.id, pair.rejected.id) for pair in pairs] == ids


def test_the_settings_of_the_newest_step_name_the_model(store: StoreProcess) -> None:
    assert RunHistory.open(store.sql, "first").last_settings().model_path == Path("models/Qwen3-0.6B")
