"""A learner with two teachers, all gone again and again: nothing is lost, scored twice, or trained unscored."""

import asyncio
import json
from collections import Counter
from pathlib import Path

import pytest

from lightningbus.bus.client import Bus
from tests.learner.conftest import settings_for
from tests.learner.scripted_teacher import ScriptedTeacher
from tests.learner.test_restart import BOUND, NUM_STOPS, SAMPLES, live, training
from tests.polling import HANG_SECONDS

STEPS, REQUESTS = 6, 2


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_teachers_and_learners_that_go_lose_and_repeat_nothing(
    bus: Bus, nats_url: str, model_path: Path, tmp_path: Path
) -> None:
    lines = [{"id": f"q{number}", "input": number, "labels": {"half": str(number % 2)}} for number in range(40)]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    async with (
        ScriptedTeacher(model_path) as even,
        ScriptedTeacher(model_path) as rest,
        training(bus, seed=1) as run,
    ):
        settings = settings_for(
            model_path, tasks=tmp_path / "tasks.jsonl", checkpoint_dir=tmp_path / "checkpoints", group_size=SAMPLES,
            groups_per_step=2, max_steps=STEPS, max_staleness=BOUND, checkpoint_interval=3,
            teacher=[
                {"name": "even", "url": even.url, "max_requests": REQUESTS, "labels": {"half": "0"}},
                {"name": "rest", "url": rest.url, "max_requests": REQUESTS, "top_k": 4},
            ],
            loss_weights={"rl": 0.0},
        )  # fmt: skip
        num_refused = 0
        for number in range(NUM_STOPS):
            server = (even, rest)[number % 2]
            server.is_away = True
            server.refused.clear()
            life = asyncio.create_task(live(nats_url, settings, asyncio.Event(), run.steps_made(len(run.steps) + 1)))
            refused = asyncio.create_task(server.refused.wait())  # unless what is trained next was scored before
            async with asyncio.timeout(HANG_SECONDS):
                await asyncio.wait({life, refused}, return_when=asyncio.FIRST_COMPLETED)
            num_refused += refused.done()
            refused.cancel()
            server.is_away = False
            await life
        await live(nats_url, settings, asyncio.Event(), asyncio.Event().wait())
        async with asyncio.timeout(HANG_SECONDS):
            while not any(event.step == STEPS for event in run.kept):
                await run.steps_made(len(run.steps) + 1)
    assert num_refused, "a teacher was away when a score was wanted"
    kept = [event for event in run.kept if event.batch_sha256]
    assert [event.step for event in kept] == [*range(1, STEPS + 1)]
    for event in kept:
        assert event.metrics["tokens/scored"] == event.metrics["tokens"] > 0
        assert event.metrics["actor/teacher_kl"] > -1e-6  # rounding of a divergence of nearly equal models
        by_teacher = [event.metrics[f"tokens/scored/{name}"] for name in ("even", "rest")]
        halves = Counter(
            int(use.task_id.removeprefix("q").partition("@")[0]) % 2 for use in event.rollouts if use.trained
        )
        assert [count / 3 for count in by_teacher] == [halves[0], halves[1]]  # three tokens a rollout
        assert len({other.batch_sha256 for other in run.steps if other.step == event.step and other.batch_sha256}) == 1
    trained = [use.execution_id for event in kept for use in event.rollouts if use.trained]
    assert len(trained) == len(set(trained)) == STEPS * 2 * SAMPLES
    num_ended = len({use.execution_id for event in run.kept for use in event.rollouts if use.execution_id})
    num_requests = sum((even.counts + rest.counts).values())
    assert len(trained) <= num_requests <= num_ended + 2 * REQUESTS * (NUM_STOPS + 1)
