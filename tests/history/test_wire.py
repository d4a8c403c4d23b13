"""Messages of the documented form are read as they are meant."""

import ast
from array import array
from pathlib import Path
from typing import Any

import msgpack

from tests.history.history import Attempt, Call, Step, Task, Use, Version
from tests.history.plan import draw
from tests.history.wire import read_wire


def tokens(*ids: int) -> bytes:
    return array("I", ids).tobytes()


def test_a_prompt_is_put_together_from_the_calls_that_it_refers_to() -> None:
    shared = {"response_ids": tokens(4, 5), "logprobs": array("f", [-0.5, -0.25]).tobytes()}
    split = [{"version": 7, "start": 0, "end": 1}, {"version": 8, "start": 1, "end": 2}]
    first = {"index": 0, "prompt_ids": tokens(1, 2), "weight_versions": split, **shared}
    second = {
        "index": 1, "prompt_ids": tokens(6), "prompt_prefix_refs": [[0, 3]], "weight_versions": split,
        "prompt_sha256": b"\1", **shared,
    }  # fmt: skip
    end = {"outcome": "infra_error", "is_final": False, "reward": None}
    batches = [
        {"rollout_id": "a.0", "execution_id": "x", "spans": [{"span_id": "s1", "call": second}], "end": end},
        {"rollout_id": "a.0", "execution_id": "x", "spans": [{"span_id": "s0", "call": first}]},
    ]
    record = read_wire([("lb.rollout.train", msgpack.packb(batch)) for batch in batches])
    assert record.calls == [
        Call("x", 1, "s1", (1, 2, 4, 6), "01", (4, 5), (-0.5, -0.25), (7, 8)),
        Call("x", 0, "s0", (1, 2), "", (4, 5), (-0.5, -0.25), (7, 8)),
    ]
    assert record.attempts == [Attempt("a.0", "x", "retried", "infra_error", None)]
    assert record.span_ids == ["s1", "s0"]


def test_tasks_steps_and_versions_are_read() -> None:
    use: dict[str, Any] = {"rollout_id": "a.0", "execution_id": "x", "trained": True, "reward": 0.5}
    step = {
        "model": "policy", "step": 1, "version": 1, "epoch": 3, "batch_sha256": "b", "spans": [{"span_id": "s1"}],
        "rollouts": [{**use, "version_tokens": [[0, 4]]}],
    }  # fmt: skip
    events = [
        ("lb.event.task_published", {"tasks": [{"task": {}, "rollout_id": "a.0", "span": {"span_id": "s0"}}]}),
        ("lb.event.training_step", step),
        ("lb.weights.version.policy", {"model": "policy", "version": 1, "epoch": 3, "fingerprint": "f"}),
    ]
    record = read_wire([(subject, msgpack.packb(event)) for subject, event in events])
    assert record.tasks == [Task("a.0", "train")]
    assert record.steps == [Step("policy", 1, 1, 3, "b", (Use("a.0", "x", True, "", 0.5, ((0, 4),)),))]
    assert record.versions == [Version("policy", 1, 3, "f")]
    assert record.span_ids == ["s0", "s1"]


def test_a_seed_says_the_same_each_time_and_every_fault_comes_while_there_is_work() -> None:
    plans = [draw(seed) for seed in range(20)]
    assert plans == [draw(seed) for seed in range(20)]
    assert all(fault.after < plan.late for plan in plans for fault in plan.faults)
    assert len({fault.target for plan in plans for fault in plan.faults}) > 5


def test_the_package_knows_nothing_of_our_code() -> None:
    for path in Path(__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.partition(".")[0] == "lightningbus" for name in names), path
