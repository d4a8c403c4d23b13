"""Which rollouts are audited."""

from msgspec.structs import replace

from lightningbus.auditor.budget import CpuBudget
from lightningbus.auditor.draw import MAX_PARTIAL, MAX_READ, Draw
from lightningbus.schemas.spans import SpanBatch, VersionSpan
from tests.factories import batches

KEY = b"k" * 32


def sampled_by(engine_id: str, version: int, execution_id: str, parts: int = 1) -> list[SpanBatch]:
    """An attempt whose tokens came from one engine and version."""
    built = []
    for batch in batches("a", 0, parts=parts):
        span = batch.spans[0]
        assert span.call is not None
        runs = (VersionSpan(version=version, start=0, end=3, engine_id=engine_id),)
        call = replace(span.call, weight_versions=runs)
        built.append(replace(batch, execution_id=execution_id, spans=(replace(span, call=call),)))
    return built


def test_the_share_is_drawn_and_nobody_without_the_key_knows_which() -> None:
    draw, other = Draw(0.01, KEY), Draw(0.01, b"j" * 32)
    executions = [f"{number:016x}" for number in range(50_000)]
    drawn = {execution for execution in executions if draw.is_drawn(execution)}
    assert 400 < len(drawn) < 600
    assert drawn != {execution for execution in executions if other.is_drawn(execution)}
    assert all(Draw(1.0, KEY).is_drawn(execution) for execution in executions[:100])
    assert not any(Draw(0.0, KEY).is_drawn(execution) for execution in executions[:100])


def test_the_first_of_each_engine_and_version_is_audited() -> None:
    draw = Draw(0.0, KEY)
    assert not draw.wants("e1")
    draw.expect([("n:1", 3), ("n:1", 4)])
    assert draw.wants("e1")
    (batch,) = sampled_by("n:1", 3, "e1")
    assert draw.add(batch) == [batch]
    (again,) = sampled_by("n:1", 3, "e2")
    assert draw.wants("e2"), "version 4 has not been met"
    assert draw.add(again) is None
    (fourth,) = sampled_by("n:1", 4, "e3")
    assert draw.add(fourth) == [fourth]
    draw.expect([("n:1", 3), ("n:1", 4)])
    assert not draw.wants("e4")


def test_nobody_is_looked_for_without_end() -> None:
    draw = Draw(0.0, KEY)
    draw.expect([("idle:1", 3)])
    for number in range(MAX_READ):
        assert draw.wants(f"{number}")
        draw.add(sampled_by("n:1", 3, f"{number}")[0])
    assert not draw.wants("next")
    draw.expect([("idle:1", 3)])
    assert not draw.wants("next"), "it is no news"
    draw.expect([("idle:1", 4)])
    assert draw.wants("next")


def test_every_rollout_of_a_suspect_is_audited() -> None:
    draw = Draw(0.0, KEY)
    draw.suspects = frozenset({"n:1"})
    (mine,) = sampled_by("n:1", 3, "e1")
    (other,) = sampled_by("n:2", 3, "e2")
    assert draw.wants("e1")
    assert draw.add(mine) == [mine]
    assert draw.add(other) is None


def test_batches_in_any_order_make_an_attempt() -> None:
    draw = Draw(1.0, KEY)
    first, second, last = sampled_by("n:1", 3, "e1", parts=3)
    assert draw.add(last) is None
    assert draw.add(first) is None
    assert draw.add(second) == [first, second, last]


def test_attempts_without_an_end_are_forgotten() -> None:
    draw = Draw(1.0, KEY)
    for number in range(MAX_PARTIAL + 1):
        assert draw.add(sampled_by("n:1", 3, f"{number}", parts=2)[0]) is None
    assert draw.add(sampled_by("n:1", 3, "0", parts=2)[1]) is None, "its first batch is forgotten"
    assert draw.add(sampled_by("n:1", 3, "1000", parts=2)[1]) is not None


def test_a_budget_is_paid_back_over_time() -> None:
    budget = CpuBudget(rate=0.1, burst=1.0, now=0.0)
    budget.spend(3.0, now=0.0)
    assert budget.seconds_to_wait(now=0.0) == 20.0
    assert budget.seconds_to_wait(now=15.0) == 5.0
    assert budget.seconds_to_wait(now=100.0) == 0.0
    budget.spend(1.0, now=100.0)
    assert budget.seconds_to_wait(now=100.0) == 0.0, "no more than the burst is saved up"
