"""How many groups in a row may give nothing, and what is said and done then."""

import asyncio
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from lightningbus.bus.client import Bus
from lightningbus.bus.fleet.heartbeats import Fleet
from lightningbus.learner.batching.rollout_dispositions import not_finished
from lightningbus.learner.errors import LearnerError
from lightningbus.learner.rollouts.rejection_streak import MAX_PAUSE_SECONDS, RejectionStreak
from lightningbus.learner.selection.task_sets import TaskSets
from lightningbus.learner.set_streaks import SetStreaks
from lightningbus.runners.gateway.slot import Slot
from lightningbus.runners.protocol.dialects.registry import APIS
from lightningbus.schemas import subjects
from lightningbus.schemas.base import Outcome
from lightningbus.schemas.tasks import Task
from lightningbus.schemas.training import RolloutDisposition
from tests.factories import batches
from tests.learner.conftest import settings_for
from tests.learner.test_gap import finish, learning, take, take_deliveries
from tests.polling import HANG_SECONDS


def test_groups_that_give_nothing_are_counted_until_one_is_trained() -> None:
    streak = RejectionStreak(limit=2)
    for _ in range(2):
        streak.add(1, ["no reward 'checker'", "agent_error"])
    assert (streak.pause, streak.problem) == (0.0, "")
    streak.add(1, ["no reward 'checker'"] * 2)
    assert streak.pause == 1.0
    assert streak.problem == (
        "the last 3 groups gave nothing to train on (4 no reward 'checker', 2 agent_error): "
        "they are tried one by one now"
    )
    for _ in range(100):
        streak.add(1, ["agent_error"])
    assert streak.pause == MAX_PAUSE_SECONDS
    streak.end()
    assert (streak.pause, streak.problem) == (0.0, "")


def test_an_agent_that_calls_no_model_is_told_each_address_that_the_gateway_serves() -> None:
    streak = RejectionStreak(limit=1, max_groups=1)
    streak.add(2, ["no sequence: no model call"])
    named = set(re.findall("[A-Z_]+_BASE_URL", streak.verdict))
    variables = {name for name in Slot(0, "http://127.0.0.1:1").environment() if name.endswith("_BASE_URL")}
    assert named == variables - {"AGL_OPENAI_BASE_URL"}, "an alias of OpenAI's"
    assert len(named) == len({each.error for each in APIS.values()}), "one client for each form of errors"


def streaks_of(*names: str, limit: int = 2, max_groups: int | None = None) -> SetStreaks:
    """Streaks of a run with these task sets; without a name: of its only one."""
    sets = [{"name": name, "path": f"{name}.jsonl"} for name in names]
    return SetStreaks(TaskSets(settings_for(Path("m"), tasks=sets or None)), limit, max_groups)


def left_out(task: str, reason: str = "no sequence: 1 too long") -> list[RolloutDisposition]:
    """Dispositions of a group of which nothing is trained, or all where the reason is empty."""
    return [replace(each, exclusion_reason=reason, trained=not reason) for each in not_finished([(task, 0), (task, 1)])]


def test_a_ready_group_ends_no_streak_of_dropped_batches() -> None:
    streaks = streaks_of()
    for number in range(2):
        streaks.note_ready(f"a{number}")
        streaks.add_batch([*left_out(f"a{number}"), *left_out(f"b{number}")])
    assert streaks.problems[""].startswith("the last 4 groups gave nothing to train on (8 no sequence: 1 too long)")
    streaks.note_ready("c")
    assert streaks.pauses == {"": 2.0} and streaks.needs_trial("c"), "the next one is tried by itself"
    streaks.end("c")
    assert not streaks.pauses and not streaks.needs_trial("d")


def test_a_set_that_gives_nothing_is_slowed_down_alone_and_the_run_ends_if_no_set_is_well() -> None:
    streaks = streaks_of("math", "code", limit=1, max_groups=4)
    for number in range(9):
        streaks.add(f"math/{number}", ["agent_error"] * 2, is_outage=False)
    assert streaks.pauses.keys() == {"math"}
    assert streaks.problems["math"].startswith("task set 'math': the last 9 groups gave nothing to train on")
    assert not streaks.verdict, "no group of the other set has ended yet"
    streaks.add_batch([*left_out("code/1", ""), *left_out("math/9")])
    assert streaks.pauses.keys() == {"math"} and streaks.needs_trial("math/1") and not streaks.needs_trial("code/1")
    for number in range(2):
        streaks.add(f"math/{number}", ["agent_error"] * 2, is_outage=False)
        assert not streaks.verdict
        streaks.add(f"code/{number}", ["timeout"] * 2, is_outage=False)
    assert streaks.verdict.startswith("the last 4 groups gave nothing to train on (4 agent_error, 4 timeout): correct")


def test_groups_that_fail_by_themselves_end_the_run_and_outages_do_not() -> None:
    streak = RejectionStreak(limit=1, max_groups=3)
    for _ in range(50):
        streak.add(1, ["infra_error"] * 2, is_outage=True)
    assert streak.is_too_long and not streak.verdict
    for _ in range(2):
        streak.add(1, ["agent_error"] * 2, example="a.0: agent_error: KeyError: 'x'")
    assert not streak.verdict
    streak.add(1, ["agent_error"] * 2)
    assert streak.verdict == (
        "the last 53 groups gave nothing to train on (100 infra_error, 6 agent_error); "
        "for example a.0: agent_error: KeyError: 'x': correct that and resume the run, or raise max_failed_groups"
    )
    streak.end()
    assert not streak.verdict


def test_the_bound_is_by_default_beyond_what_is_under_way(model_path: Path) -> None:
    settings = settings_for(model_path, max_staleness=1, groups_per_step=16)
    assert settings.failed_groups_limit == 2 * 16 + 10
    assert settings_for(model_path, max_failed_groups=3).failed_groups_limit == 3


async def finish_without_reward(bus: Bus, tasks: list[Task], outcome: Outcome = "ok", error: str = "") -> None:
    """What a runner says of tasks whose agent gave no reward."""
    for task in tasks:
        for part in batches(task.id, task.sample_index, None, samples=2, outcome=outcome, error=error):
            await bus.publish(subjects.TRAIN_ROLLOUT, part, msg_id=f"{part.execution_id}:{part.sequence}")


async def wait_for_alert(learners: Fleet) -> str:
    while not (alert := next((str(beat.status.get("alert") or "") for beat in learners.members()), "")):
        await learners.wait_for_change()
    return alert


async def test_a_learner_that_gets_no_reward_says_so_and_tries_groups_one_by_one(
    bus: Bus, model_path: Path, tmp_path: Path
) -> None:
    async with asyncio.timeout(HANG_SECONDS), bus.fleet("learner") as learners, learning(bus, model_path, tmp_path):
        for _ in range(2):  # one more than the bound of one group a step and no lag admits at once
            await finish_without_reward(bus, await take(bus, 2))
        alert = await wait_for_alert(learners)
        assert "learner of policy: the last 2 groups gave nothing to train on (4 no reward)" in alert
        dispatched_at_ns = []
        for _ in range(2):
            messages = await take_deliveries(bus, 2)
            dispatched_at_ns.append(messages[0].timestamp_ns)
            await finish_without_reward(bus, [message.decode_as(Task) for message in messages])
        seconds = (dispatched_at_ns[1] - dispatched_at_ns[0]) / 1e9
        assert seconds > 0.9, "the second pause is of two seconds, from dispatch to dispatch"


async def test_a_learner_whose_rollouts_all_fail_ends_with_the_reasons_and_can_go_on_later(
    bus: Bus, model_path: Path, tmp_path: Path
) -> None:
    async with asyncio.timeout(120), learning(bus, model_path, tmp_path, max_failed_groups=2) as running:
        for _ in range(2):
            await finish_without_reward(bus, await take(bus, 2), "agent_error", "KeyError: 'answer'")
        with pytest.raises(LearnerError) as ended:
            await running
    assert "the last 2 groups gave nothing to train on (4 agent_error); for example " in str(ended.value)
    assert ": agent_error: KeyError: 'answer': correct that and resume the run" in str(ended.value)
    async with asyncio.timeout(120), learning(bus, model_path, tmp_path, max_failed_groups=2) as running:
        await finish_without_reward(bus, await take(bus, 2), "agent_error")
        await finish(bus, await take(bus, 2))
        await running


@pytest.mark.parametrize("outcome", ["infra_error", "poison"])
async def test_a_learner_waits_for_the_end_of_an_outage(
    bus: Bus, model_path: Path, tmp_path: Path, outcome: Outcome
) -> None:
    async with asyncio.timeout(120), learning(bus, model_path, tmp_path, max_failed_groups=1) as running:
        for _ in range(2):
            await finish_without_reward(bus, await take(bus, 2), outcome, "no node answered")
        await finish(bus, await take(bus, 2))
        await running


async def finish_without_call(bus: Bus, tasks: list[Task]) -> None:
    """Publish the ends of tasks whose agent gave a reward and called no model."""
    for task in tasks:
        (part,) = batches(task.id, task.sample_index, float(task.sample_index), samples=2, parts=1)
        assert part.end is not None
        part = replace(part, spans=(), end=replace(part.end, num_spans=0))
        await bus.publish(subjects.TRAIN_ROLLOUT, part, msg_id=f"{part.execution_id}:{part.sequence}")


@pytest.mark.parametrize(("groups_per_step", "max_failed_groups"), [(1, 2), (2, 5), (4, 2)])
async def test_a_learner_whose_rollouts_ask_no_model_ends_with_what_to_do(
    bus: Bus, model_path: Path, tmp_path: Path, groups_per_step: int, max_failed_groups: int
) -> None:
    changes = {"max_failed_groups": max_failed_groups, "groups_per_step": groups_per_step}
    async with asyncio.timeout(120), learning(bus, model_path, tmp_path, **changes) as running:
        for _ in range(max_failed_groups):
            await finish_without_call(bus, await take(bus, 2))
        with pytest.raises(LearnerError) as ended:
            await running
    assert str(ended.value) == (
        f"the last {max_failed_groups} groups gave nothing to train on ({2 * max_failed_groups} no sequence: no model "
        "call); the agent's client must call the base URL that it gets, in OPENAI_BASE_URL or ANTHROPIC_BASE_URL or "
        "GOOGLE_GEMINI_BASE_URL: "
        "correct that and resume the run, or raise max_failed_groups"
    )


async def test_a_streak_of_a_step_of_several_groups_ends_when_the_agent_is_mended(
    bus: Bus, model_path: Path, tmp_path: Path
) -> None:
    async with asyncio.timeout(120), learning(bus, model_path, tmp_path, groups_per_step=2) as running:
        for _ in range(4):  # Two more than a step has: now groups are tried one by one.
            await finish_without_call(bus, await take(bus, 2))
        for _ in range(2):
            await finish(bus, await take(bus, 2))
        await running


async def test_a_ready_group_that_waits_for_others_hides_no_streak_of_them(
    bus: Bus, model_path: Path, tmp_path: Path
) -> None:
    changes = {"max_failed_groups": 3, "groups_per_step": 2}
    async with asyncio.timeout(120), learning(bus, model_path, tmp_path, **changes) as running:
        await finish(bus, await take(bus, 2))
        for _ in range(3):
            await finish_without_reward(bus, await take(bus, 2), "agent_error", "KeyError: 'answer'")
        with pytest.raises(LearnerError, match=r"^the last 3 groups gave nothing to train on \(6 agent_error\)"):
            await running


def test_groups_that_call_no_model_are_not_waited_for_longer_and_longer() -> None:
    streak = RejectionStreak(limit=2, max_groups=12)
    for _ in range(11):
        streak.add(1, ["no sequence: no model call"] * 2, is_batch=True)
    assert streak.pause == 1.0 and not streak.verdict
    streak.add(1, ["agent_error", "no sequence: no model call"])
    assert streak.pause == MAX_PAUSE_SECONDS
    assert "OPENAI_BASE_URL" not in streak.verdict
