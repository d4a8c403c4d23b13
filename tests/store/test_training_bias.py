"""The store notices that a run trains slow rollouts less than others."""

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from lightningbus.alerts.table import MIN_ROLLOUTS
from lightningbus.schemas.base import Event
from lightningbus.schemas.spans import SpanBatch
from lightningbus.schemas.training import TrainingStep
from lightningbus.store.training_bias import find_bias
from tests import seed_store
from tests.store.conftest import prepared


def make_run(name: str, share_of_slow: float, reason: str = "stale", **sizes: Any) -> list[Event]:
    """A run that trains all rollouts but some of the slowest tenth, left out for a reason."""
    events = list(seed_store.run(name, **sizes))
    durations = {
        event.rollout_id: event.end.ended_ns - event.end.started_ns
        for event in events
        if isinstance(event, SpanBatch) and event.end is not None
    }
    slow = sorted(durations, key=lambda rollout: durations[rollout])[-len(durations) // 10 :]
    left_out = set(slow[: round(len(slow) * (1 - share_of_slow))])
    return [
        replace(
            event,
            rollouts=tuple(
                replace(
                    use,
                    trained=False,
                    exclusion_reason=reason,
                    outcome="agent_error" if reason == "agent_error" else use.outcome,
                )
                if use.rollout_id in left_out
                else replace(use, trained=True, exclusion_reason="")
                for use in event.rollouts
            ),
        )
        if isinstance(event, TrainingStep)
        else event
        for event in events
    ]


@pytest.mark.integration
def test_a_run_that_leaves_out_slow_rollouts_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    big = {"steps": 4, "groups": 8, "samples": 8}
    assert big["steps"] * big["groups"] * big["samples"] > MIN_ROLLOUTS
    with prepared(tmp_path) as store:
        seed_store.insert(store.sql, make_run("over", 0.0, seed=1, **big), first=1)
        monkeypatch.setattr(seed_store, "START_NS", time.time_ns() - 100 * seed_store.SECOND_NS)
        seed_store.insert(store.sql, make_run("fair", 1.0, seed=2, **big), first=10_000)
        seed_store.insert(store.sql, make_run("small", 0.0, seed=3), first=20_000)
        assert find_bias(store.sql) == "", "one is over, one is fair, one is too small to tell"
        failing = make_run("failing", 0.0, "agent_error", seed=8, **big)
        seed_store.insert(store.sql, failing, first=40_000)
        assert "slow" not in find_bias(store.sql), "its slow rollouts are left out because the agent failed"
        seed_store.insert(store.sql, make_run("unfair", 0.5, seed=4, **big), first=30_000)
        problem = find_bias(store.sql)
    assert problem.startswith("run unfair leaves out slow rollouts: of the slowest tenth 50% is trained, of all 95%")


def fail_some(events: list[Event], failed_rollouts: str) -> list[Event]:
    """A run whose agent fails every fourth rollout, which is not trained."""
    failed: set[str] = set()
    changed: list[Event] = []
    for event in events:
        if isinstance(event, SpanBatch) and event.end is not None and event.mode == "train":
            if int(event.rollout_id.rpartition(".")[2]) % 4 == 0:
                failed.add(event.rollout_id)
                end = replace(event.end, outcome="agent_error", reward=None, error="EmptyAnswer: said nothing")
                event = replace(event, end=end)
        elif isinstance(event, TrainingStep):
            uses = (
                replace(use, outcome="agent_error", trained=False, exclusion_reason="agent_error")
                if use.rollout_id in failed
                else use
                for use in event.rollouts
            )
            settings = json.dumps({**json.loads(event.settings), "failed_rollouts": failed_rollouts})
            event = replace(event, rollouts=tuple(uses), settings=settings)
        changed.append(event)
    return changed


@pytest.mark.integration
def test_a_run_that_leaves_out_many_failed_rollouts_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seed_store, "START_NS", time.time_ns() - 100 * seed_store.SECOND_NS)
    sizes = {"steps": 4, "groups": 8, "samples": 8}
    with prepared(tmp_path) as store:
        seed_store.insert(store.sql, fail_some([*seed_store.run("zero", seed=5, **sizes)], "zero"), first=1)
        seed_store.insert(store.sql, list(seed_store.run("good", seed=6, **sizes)), first=10_000)
        assert "which the agent failed" not in find_bias(store.sql), "they count as 0, or are few"
        seed_store.insert(store.sql, fail_some([*seed_store.run("masked", seed=7, **sizes)], "mask"), first=20_000)
        problem = find_bias(store.sql)
    assert re.match(
        r"run masked leaves out \d\d% of its newest rollouts, which the agent failed \(EmptyAnswer: ", problem
    )
    assert "`failed_rollouts: zero` counts them as 0" in problem
