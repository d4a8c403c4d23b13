"""A prompt that no model call has is said at once, with how it is found."""

import pytest

from lightningbus.optimize.feedback import RolloutResult
from lightningbus.optimize.plan.prompt_use import check_prompts_used
from lightningbus.run.errors import UserError
from lightningbus.run.evaluation.failures import describe_failures
from lightningbus.run.settings.optimize import PromptSettings

PROMPTS = {"solver": PromptSettings(text="Add."), "judge": PromptSettings(text="Judge.", role="checker")}
WELL = [RolloutResult(f"r{number}", number, "ok", 1.0) for number in range(9)]
FAILED = [RolloutResult("r0", 0, "agent_error", None, error="KeyError:\n 'x'"), *WELL[1:3]]


def test_prompts_that_calls_had_are_no_reason_to_stop() -> None:
    check_prompts_used(PROMPTS, {"solver", "judge", "other"}, 4, WELL)


def test_a_prompt_in_no_call_is_named_with_how_it_is_found() -> None:
    with pytest.raises(UserError) as by_text:
        check_prompts_used(PROMPTS, {"judge"}, 12, WELL)
    assert str(by_text.value) == (
        "prompt 'solver' is in no model call of 9 rollouts (12 calls): the gateway looks for it in system messages, "
        "by its exact text or between <!-- prompt:solver --> and <!-- /prompt -->"
    )
    with pytest.raises(UserError) as by_role:
        check_prompts_used(PROMPTS, {"solver"}, 12, FAILED)
    assert str(by_role.value) == (
        "prompt 'judge' is in no model call of 3 rollouts (12 calls): the gateway looks for it as the whole system "
        "message of calls to policy:checker; 1 of 3 rollouts failed: agent_error: KeyError: 'x'"
    )


def test_rollouts_without_a_call_are_said_with_their_error() -> None:
    with pytest.raises(UserError, match="none of 1 rollouts made a model call: 1 of 1 rollouts failed: agent_error"):
        check_prompts_used(PROMPTS, set(), 0, FAILED[:1])
    with pytest.raises(UserError, match="none of 9 rollouts made a model call: the agent asks no model"):
        check_prompts_used(PROMPTS, set(), 0, WELL)


def test_the_most_frequent_failure_is_named() -> None:
    assert describe_failures([("ok", "")]) == describe_failures([]) == ""
    assert describe_failures([("agent_error", "a"), ("ok", ""), ("timeout", ""), ("agent_error", "a")]) == (
        "3 of 4 rollouts failed: agent_error: a (2 times)"
    )
    assert describe_failures([("timeout", "")]) == "1 of 1 rollouts failed: timeout"
