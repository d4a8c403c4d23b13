"""Callbacks of a training job, told by a real store; `tests/api/test_training.py` has them in a whole run."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightningbus.api.train_result import TrainResult
from lightningbus.run.errors import UserError
from lightningbus.run.evaluation.evaluation import Evaluation
from lightningbus.run.jobs import callbacks
from lightningbus.run.jobs.callbacks import Alert, Callback, CallbackCaller, Change, Step, StepQueue
from lightningbus.run.results.best_version import has_stopped_improving
from lightningbus.run.settings.evaluation import EvalSettings
from lightningbus.schemas import fleet
from tests import seed_store
from tests.lightningbus.test_train_job import evaluation
from tests.polling import HANG_SECONDS
from tests.store.conftest import prepared


class Notes(Callback):
    """Notes what is reported, and wants to end after some step."""

    def __init__(self, last: int = 100) -> None:
        self.seen: list[Any] = []
        self.last = last

    def on_step(self, step: Step) -> str | None:
        self.seen.append((step.model, step.step))
        assert step.version == step.step and step.metrics["staleness/max"] == step.step % 3
        return f"step {step.step} is enough" if step.step >= self.last else None

    def on_evaluation(self, evaluation: Evaluation) -> None:
        self.seen.append(evaluation.version)

    def on_alert(self, alert: Alert) -> None:
        self.seen.append((alert.role, alert.reason, alert.is_resolved))


class Lowers(Callback):
    """Asks for a lower rate after each step."""

    def on_step(self, step: Step) -> Change:
        return Change({"actor": {"optim": {"lr": 1e-6 / step.step}}})


class Fails(Callback):
    """Has a mistake."""

    def on_step(self, step: Step) -> None:
        raise KeyError(step.metrics["no_such_metric"])


@pytest.mark.integration
async def test_each_event_of_this_start_is_reported_once_in_order(tmp_path: Path) -> None:
    events = list(seed_store.run("first", steps=5))
    steps = [event for event in events if type(event).__name__ == "TrainingStep"]
    alert = fleet.Alert(role="runner", reason="no runner is there", fired_at_ns=seed_store.START_NS + 1)
    with prepared(tmp_path / "store") as store:
        seed_store.insert(store.sql, [*steps[:2], alert])
        notes = Notes(last=4)
        changes: list[tuple[str, Change]] = []

        async def change(wish: Change, name: str) -> None:
            changes.append((name, wish))

        caller = CallbackCaller([notes, Lowers()], "first", change)
        await caller.begin(store.sql)
        await caller.report_new(store.sql)
        assert notes.seen == [], "an earlier start was not left out"
        ended = fleet.Alert(
            role="runner", reason="no runner is there", resolved=True, fired_at_ns=alert.fired_at_ns + 1
        )
        seed_store.insert(store.sql, [*steps[2:4], ended], first=100)
        await caller.report_new(store.sql)
        await caller.report_evaluation(evaluation("greedy", 4, 0.5))
        await caller.report_new(store.sql)
        assert notes.seen == [("policy", 3), ("policy", 4), ("runner", "no runner is there", True), 4]
        await caller.wait_stopped()
        assert caller.stop_reason == "Notes.on_step: step 4 is enough"
        rates = [wish.learner["actor"]["optim"]["lr"] for _, wish in changes]
        assert rates == [1e-6 / 3, 1e-6 / 4] and changes[0][0] == "Lowers.on_step"
        with pytest.raises(
            UserError, match=r"callback Fails\.on_step failed: KeyError: 'no_such_metric' \(.*line \d+\)"
        ):
            await CallbackCaller([Fails()], "first", change).report_new(store.sql)


class Answers(Callback):
    """Gives one answer, at once or by a coroutine."""

    def __init__(self, answer: Any, is_async: bool = False) -> None:
        self._answer, self._is_async = answer, is_async

    def on_evaluation(self, evaluation: Evaluation) -> Any:
        return asyncio.sleep(0, self._answer) if self._is_async else self._answer


async def no_change(wish: Change, name: str) -> None:
    raise AssertionError


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (None, ""), (False, ""), ("", ""), (np.bool_(False), ""), ({"loss": 1}, ""), ([0.5], ""), (1, ""),
        (np.ones(2), ""), (True, "Answers.on_evaluation"), (np.bool_(True), "Answers.on_evaluation"),
        ("enough", "Answers.on_evaluation: enough"),
    ],
    ids=str,
)  # fmt: skip
async def test_true_or_a_reason_ends_training_and_nothing_else(
    answer: Any, reason: str, is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caller = CallbackCaller([Answers(answer, is_async)], "first", no_change)
    for version in range(2):
        await caller.report_evaluation(evaluation("greedy", version, 0.5))
    assert caller.stop_reason == reason
    is_odd = not reason and not isinstance(answer, str | bool | np.bool_) and answer is not None
    assert caplog.text.count("return True or a reason to stop") == is_odd


class Hangs(Callback):
    """Takes as long as the test wants."""

    def __init__(self) -> None:
        self.gate, self.seen = threading.Event(), list[int]()

    def on_evaluation(self, evaluation: Evaluation) -> str:
        self.gate.wait()
        self.seen.append(evaluation.version)
        return "at last"


async def test_a_callback_that_hangs_is_named_and_left_behind(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(callbacks, "CALL_SECONDS", 0.01)
    hanging = Hangs()
    caller = CallbackCaller([hanging, Answers("enough")], "first", no_change)
    async with asyncio.timeout(HANG_SECONDS):
        for version in range(2):
            await caller.report_evaluation(evaluation("greedy", version, 0.5))
        assert caller.stop_reason == "Answers.on_evaluation: enough" and hanging.seen == []
        assert caplog.text.count("callback Hangs.on_evaluation has not ended in 0.01 s") == 1
        (thread,) = [thread for thread in threading.enumerate() if thread.name == "callback Hangs"]
        assert thread.daemon, "no process waits for it"
        hanging.gate.set()
        while hanging.seen[:2] != [0, 1]:
            await caller.report_evaluation(evaluation("greedy", 2, 0.5))


class Loop(StepQueue):
    """Takes what it is given at once, but for the steps beyond a number."""

    def __init__(self, last: int) -> None:
        super().__init__()
        self.seen: list[int] = []
        self._last = last

    def on_step(self, step: Step) -> None:
        if step.step <= self._last:
            self.seen.append(step.step)
            self.last_taken[step.model] = step.step


@pytest.mark.integration
async def test_a_resume_goes_on_after_the_last_step_that_was_had(tmp_path: Path) -> None:
    """A loop that was left has not had the steps that were made after; those of callbacks are not given again."""
    steps = [event for event in seed_store.run("first", steps=6) if type(event).__name__ == "TrainingStep"]

    async def change(wish: Change, name: str) -> None:
        raise AssertionError

    with prepared(tmp_path / "store") as store:
        first, loop = Notes(last=99), Loop(2)
        caller = CallbackCaller([first, loop], "first", change)
        await caller.begin(store.sql)
        seed_store.insert(store.sql, steps[:3])
        await caller.report_new(store.sql)
        reported = caller.reported
        assert (reported.by_callbacks, reported.by_loops) == ({"policy": 3}, {"policy": 2})
        seed_store.insert(store.sql, steps[3:4], first=100)  # made while the first start ended
        second, loop = Notes(last=99), Loop(99)
        caller = CallbackCaller([second, loop], "first", change, reported)
        await caller.begin(store.sql)
        seed_store.insert(store.sql, steps[4:], first=200)
        await caller.report_new(store.sql)
        assert loop.seen == [3, 4, 5, 6] and [step for _, step in second.seen] == [4, 5, 6]
        assert CallbackCaller([], "first", change, reported).reported == reported, "a start without any forgets none"


@pytest.mark.parametrize(
    ("means", "has_stopped"),
    [([0.1], False), ([0.1, 0.2], False), ([0.5, 0.5, 0.5], True), ([0.5, 0.2, 0.6], False), ([0.9, 0.2, 0.6], True)],
)
def test_patience_ends_with_evaluations_that_are_no_better(means: list[float], has_stopped: bool) -> None:
    done = [evaluation("greedy", version, mean) for version, mean in enumerate(means)]
    done += [evaluation("sampled", len(means), 1.0)]
    assert has_stopped_improving(done, patience=2) is has_stopped
    assert not has_stopped_improving(done, patience=2, best_by="sampled")


def test_patience_wants_evaluations_during_training() -> None:
    with pytest.raises(ValueError, match="patience counts evaluations during training: set `tasks` and `every` too"):
        EvalSettings(tasks=Path("heldout.jsonl"), patience=2)


def test_a_result_knows_its_best_version_and_why_it_ended() -> None:
    figures = dict.fromkeys(
        ("rollouts", "tokens_trained", "weight_versions", "rollouts_lost", "rollouts_trained_twice"), 0
    ) | {"seconds": 1.0, "mean_staleness": 0.0, "max_staleness": 0, "stop_reason": "enough"}
    done = [evaluation("greedy", version, mean) for version, mean in enumerate([0.1, 0.8, 0.3])]
    result = TrainResult(Path("runs/a"), figures, done)
    assert result.best_version == 1 and TrainResult(Path("runs/a"), figures, []).best_version is None
    assert "training ended early: enough" in repr(result)
