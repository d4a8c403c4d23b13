"""The judge accepts a right history, and finds each kind of fault that is planted into one."""

from array import array
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest

from tests.history.history import Attempt, Call, History, Record, Step, Task, Use, Version
from tests.history.judge import judge

PROMPT, LONGER = (1, 2, 3), (1, 2, 3, 4, 5, 6)


def digest(tokens: tuple[int, ...]) -> str:
    return sha256(array("I", tokens)).hexdigest()


def call(execution: str, index: int, prompt: tuple[int, ...], version: int) -> Call:
    return Call(
        execution, index, f"{execution}-{index}", prompt, digest(prompt), (4, 5), (-0.5, -0.25), (version, version)
    )


def record() -> Record:
    """Two steps of one group of two each, an evaluation, and an attempt that was retried."""
    names = ["a.0", "a.1", "b.0", "b.1"]
    ends = [Attempt(name, f"x-{name}", "final", "ok", number / 4) for number, name in enumerate(names)]
    uses = [
        Use(end.rollout_id, end.execution_id, True, "", end.reward, ((number // 2, 4),))
        for number, end in enumerate(ends)
    ]
    left_out = Use("a.2", "x-a.2", False, "agent_error", None, ())
    return Record(
        tasks=[Task(name, "train") for name in [*names, "a.2"]] + [Task("own.0", "eval")],
        span_ids=["s1", "s2", "s3"],
        attempts=[
            Attempt("own.0", "x-0", "retried", "infra_error", None),
            *ends,
            Attempt("a.2", "x-a.2", "final", "agent_error", None),
            Attempt("own.0", "x-1", "final", "ok", 1.0),
        ],
        calls=[
            each
            for number, end in enumerate(ends)
            for each in (
                call(end.execution_id, 0, PROMPT, number // 2),
                call(end.execution_id, 1, LONGER, number // 2),
            )
        ],
        steps=[
            Step("policy", 1, 1, 1, "batch-1", (uses[0], uses[1], left_out)),
            Step("policy", 2, 2, 1, "batch-2", (uses[2], uses[3])),
        ],
        versions=[Version("policy", number, 1, f"print-{number}") for number in range(3)],
    )


def history() -> History:
    sql = record()
    sql.versions = [replace(version, fingerprint="") for version in sql.versions]
    rollouts = [attempt for attempt in sql.attempts if attempt.resolution != "retried"]
    return History(["own.0"], 1, record(), sql, rollouts, [])


def change(items: list[Any], place: int, **fields: Any) -> None:
    items[place] = replace(items[place], **fields)


def change_use(past: History, step: int, place: int, sides: str = "wire sql", **fields: Any) -> None:
    for side in sides.split():
        steps = getattr(past, side).steps
        uses = list(steps[step].uses)
        change(uses, place, **fields)
        change(steps, step, uses=tuple(uses))


def change_both(past: History, name: str, place: int, **fields: Any) -> None:
    for side in (past.wire, past.sql):
        change(getattr(side, name), place, **fields)


def end_again(past: History) -> None:
    """SQL takes the second of two final attempts for the rollout."""
    again = Attempt("own.0", "x-2", "final", "ok", 0.0)
    past.wire.attempts.append(again)
    past.sql.attempts.append(again)
    past.rollouts[-1] = again


def train_again(past: History) -> None:
    for side in (past.wire, past.sql):
        change(side.steps, 1, uses=(*side.steps[1].uses, side.steps[0].uses[0]))


def lose_task(past: History) -> None:
    past.wire.tasks.pop()
    past.sql.tasks.pop()


def end_never(past: History) -> None:
    past.wire.attempts.pop()
    past.sql.attempts.pop()
    past.rollouts.pop()


def leave_out(past: History) -> None:
    for side in (past.wire, past.sql):
        change(side.steps, 1, uses=side.steps[1].uses[:1])


def skip_step(past: History) -> None:
    change_both(past, "steps", 1, step=3)


def skip_version(past: History) -> None:
    for side in (past.wire, past.sql):
        del side.versions[1]
        change(side.steps, 0, version=2)
    change_use(past, 0, 0, version_tokens=((1, 4),))
    change_use(past, 0, 1, version_tokens=((1, 4),))


def make_again(past: History) -> None:
    """The learner of the next epoch makes the second step of another batch."""
    again = replace(past.wire.steps[1], epoch=2, batch_sha256="other")
    past.wire.steps.append(again)
    past.sql.steps[1] = again


FAULTS: list[tuple[str, Callable[[History], Any]]] = [
    ("task unrecorded", lose_task),
    ("task unended", end_never),
    ("task lost", lambda past: past.sql.tasks.pop()),
    ("task doubled", lambda past: past.sql.tasks.append(past.sql.tasks[0])),
    ("task invented", lambda past: past.sql.tasks.append(Task("z.0", "eval"))),
    ("task altered", lambda past: change(past.sql.tasks, 0, mode="eval")),
    ("task contradicted", lambda past: past.wire.tasks.append(Task("a.0", "eval"))),
    ("span lost", lambda past: past.sql.span_ids.pop()),
    ("span doubled", lambda past: past.sql.span_ids.append("s1")),
    ("span invented", lambda past: past.sql.span_ids.append("s9")),
    ("attempt lost", lambda past: past.sql.attempts.pop(0)),
    ("attempt doubled", lambda past: past.sql.attempts.append(past.sql.attempts[0])),
    ("attempt invented", lambda past: past.sql.attempts.append(Attempt("a.0", "x-9", "retried", "infra_error", None))),
    ("attempt altered", lambda past: change(past.sql.attempts, 2, reward=0.3)),
    ("attempt contradicted", lambda past: past.wire.attempts.append(replace(past.wire.attempts[1], reward=0.9))),
    ("rollout lost", lambda past: past.rollouts.pop()),
    ("rollout doubled", lambda past: past.rollouts.append(past.rollouts[0])),
    ("rollout invented", lambda past: past.rollouts.append(Attempt("z.0", "x-z", "final", "ok", 1.0))),
    ("rollout altered", end_again),
    ("call lost", lambda past: past.sql.calls.pop()),
    ("call doubled", lambda past: past.sql.calls.append(past.sql.calls[0])),
    ("call invented", lambda past: past.sql.calls.append(call("x-9", 0, PROMPT, 0))),
    ("call altered", lambda past: change(past.sql.calls, 1, response_ids=(4, 6))),
    ("call altered", lambda past: change(past.sql.calls, 1, span_id="another")),
    ("call contradicted", lambda past: past.wire.calls.append(replace(past.wire.calls[0], logprobs=(-0.5, -0.5)))),
    ("prompt altered", lambda past: change_both(past, "calls", 1, prompt_ids=(1, 2, 3, 4, 5, 7))),
    ("version lost", lambda past: past.sql.versions.pop()),
    ("version doubled", lambda past: past.sql.versions.append(past.sql.versions[0])),
    ("version invented", lambda past: past.sql.versions.append(Version("policy", 3, 1, ""))),
    ("version skipped", skip_version),
    ("version of two digests", lambda past: past.wire.versions.append(Version("policy", 2, 2, "other"))),
    ("version unpublished", lambda past: change_both(past, "steps", 1, version=3)),
    ("step lost", lambda past: past.sql.steps.pop()),
    ("step doubled", lambda past: past.sql.steps.append(replace(past.sql.steps[0], uses=()))),
    ("step invented", lambda past: past.sql.steps.append(Step("policy", 3, 3, 1, "batch-3", ()))),
    ("step altered", lambda past: change(past.sql.steps, 0, batch_sha256="other")),
    ("step skipped", skip_step),
    ("step of two batches", make_again),
    ("use lost", lambda past: change(past.sql.steps, 1, uses=past.sql.steps[1].uses[:1])),
    ("use altered", lambda past: change_use(past, 0, 0, "sql", reward=0.9)),
    ("use unexplained", lambda past: change_use(past, 0, 2, exclusion_reason="")),
    ("trained twice", train_again),
    ("other attempt trained", lambda past: change_use(past, 0, 0, execution_id="x-9")),
    ("other reward trained", lambda past: change_use(past, 0, 0, reward=0.9)),
    ("token too old", lambda past: setattr(past, "max_staleness", -1)),
    ("token unsampled", lambda past: change_use(past, 0, 0, version_tokens=((0, 5),))),
    ("rollout unused", leave_out),
    ("dead letter", lambda past: past.dead_letters.append("TASKS: it cannot be read")),
]


def test_a_right_history_has_no_finding() -> None:
    assert judge(history()) == []


def test_repeated_messages_and_a_version_that_a_newer_learner_claims_are_no_findings() -> None:
    past = history()
    for name in ("tasks", "span_ids", "attempts", "calls", "steps"):
        getattr(past.wire, name).extend(deepcopy(getattr(past.wire, name)))
    past.wire.versions.append(Version("policy", 2, 2, "print-2"))
    past.sql.versions.append(Version("policy", 2, 2, ""))
    assert judge(past) == []


@pytest.mark.parametrize(("kind", "plant"), FAULTS, ids=[f"{number}-{kind}" for number, (kind, _) in enumerate(FAULTS)])
def test_each_kind_of_fault_is_found(kind: str, plant: Callable[[History], Any]) -> None:
    past = history()
    plant(past)
    assert kind in {finding.kind for finding in judge(past)}
