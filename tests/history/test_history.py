"""``make history`` in small: one seed, judged from outside."""

import asyncio
from pathlib import Path

import pytest

from tests.history.judge import judge
from tests.history.plan import draw
from tests.history.play import make_model, play

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]
SEED = 2


async def test_the_history_of_a_small_system_under_faults_is_as_promised(tmp_path: Path) -> None:
    model = await asyncio.to_thread(make_model, tmp_path)
    history = await play(draw(SEED), model, tmp_path / "run")
    assert judge(history) == []
    assert history.counts()["trained"] > 0 and len(history.acknowledged) == draw(SEED).num_evaluations
