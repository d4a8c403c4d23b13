"""Which attempts are retried, and when."""

from typing import Any

from lightningbus.runners import retry_policy
from lightningbus.schemas.tasks import Task


def task(**changes: Any) -> Task:
    return Task(**{"id": "t", "run_id": "run", "agent": "default", "input": {}, **changes})


def test_only_what_is_not_the_agents_doing_is_tried_again() -> None:
    request = task(max_attempts=3)
    assert retry_policy.decide_next_action(request, 1, "infra_error").retry_after == 1.0
    assert retry_policy.decide_next_action(request, 2, "infra_error").retry_after == 2.0
    assert retry_policy.decide_next_action(request, 3, "infra_error") == retry_policy.RetryDecision(dead_letter=True)
    assert retry_policy.decide_next_action(request, 3, "preempted").retry_after == 0.0
    assert retry_policy.decide_next_action(request, 1, "poison") == retry_policy.RetryDecision(dead_letter=True)
    for outcome in ("ok", "agent_error", "timeout"):
        assert retry_policy.decide_next_action(request, 1, outcome) == retry_policy.RetryDecision()  # type: ignore[arg-type]
    assert not retry_policy.is_exhausted(request, 3) and retry_policy.is_exhausted(request, 4)
