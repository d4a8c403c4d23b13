"""An attempt's spans travel in batches."""

from typing import Any

from lightningbus.runners.recording.attempt import AttemptRecorder
from lightningbus.schemas.codec import encode
from lightningbus.schemas.spans import Span
from lightningbus.schemas.tasks import Task


def task(**changes: Any) -> Task:
    return Task(**{"id": "t", "run_id": "run", "agent": "default", "input": {}, **changes})


def test_long_attempts_are_cut_into_batches_and_the_last_one_ends_them() -> None:
    attempt = AttemptRecorder(task(), 2, "runner")
    for n in range(9):
        attempt.add(Span(trace_id="t", span_id=f"{n}", name="x", start_ns=1, end_ns=2, attributes={"a": "a" * 300_000}))
    attempt.finish("ok", 1.0, "", "1")
    batches = list(attempt.outbox)
    assert len(batches) > 1
    assert [batch.sequence for batch in batches] == list(range(len(batches)))
    assert [batch.end is not None for batch in batches] == [False] * (len(batches) - 1) + [True]
    assert sum(len(batch.spans) for batch in batches) == 10
    assert max(len(encode(batch)) for batch in batches) < 1_500_000
