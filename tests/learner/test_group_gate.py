"""Groups without signal that are replaced make the gradient larger, and the step says how many times."""

from pathlib import Path
from typing import Any

import pytest

from lightningbus.learner.group_gate import GroupGate
from tests.learner.conftest import settings_for


@pytest.mark.parametrize(("num_replaced", "scale"), [(0, 1.0), (2, 1.5), (12, 4.0)])
def test_a_step_says_how_much_larger_replacing_makes_its_gradient(num_replaced: int, scale: float) -> None:
    """Four groups of a step out of six that ended are a gradient of 6 / 4 in place of 1."""
    rules = {"replace_without_signal": True}
    settings = settings_for(Path("m"), groups_per_step=4, tasks="tasks.jsonl", task_selection=rules)
    others: dict[str, Any] = dict.fromkeys(("bus", "dispatcher", "excluded", "builder", "in_thread"))
    gate = GroupGate(settings=settings, _num_replaced=num_replaced, **others)
    assert gate.end_step() == {"groups/replaced": num_replaced, "groups/update_scale": scale}
    assert gate.end_step()["groups/update_scale"] == 1.0
