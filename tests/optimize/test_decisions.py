"""What an optimisation decides without a bus: budget, feedback, verdict, and whether it has begun with the same."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightningbus.optimize.feedback import CallText, RolloutResult, build_records
from lightningbus.optimize.plan.budget import Budget, BudgetSpentError
from lightningbus.optimize.plan.candidates import ROUND_PATTERN, evaluation_key, proposal_key, round_name
from lightningbus.optimize.plan.round_plan import check_settings, describe_course, find_limit
from lightningbus.optimize.plan.verdict import compare
from lightningbus.optimize.reflection import build_request, extract_prompt
from lightningbus.run.errors import UserError
from lightningbus.run.settings.optimize import OptimizeSettings
from lightningbus.tasks.task_loading import TaskInput


def test_what_was_published_before_is_not_published_again_and_counts() -> None:
    budget = Budget(4, {"a", "b"})
    assert budget.admit(["a", "b", "c"]) == {"c"}
    assert budget.admit(["a", "c"]) == set()
    with pytest.raises(BudgetSpentError, match="2 more rollouts would exceed the budget of 4"):
        budget.admit(["d", "e"])
    assert budget.published == {"a", "b", "c"} and budget.admit(["d"]) == {"d"}


@given(st.lists(st.lists(st.integers(0, 30), max_size=8), max_size=12), st.integers(0, 25), st.data())
def test_a_killed_optimiser_decides_as_it_did_and_never_exceeds_its_budget(
    batches: list[list[int]], limit: int, data: Any
) -> None:
    """However often it is killed amid a batch: the same batches are admitted, and no rollout is published twice."""

    def life(published: set[str], kill_at: int | None) -> tuple[list[bool], list[str]]:
        budget, admitted, sent = Budget(limit, published), list[bool](), list[str]()
        for number, batch in enumerate(batches):
            names = [str(task) for task in batch]
            admitted.append(budget.has_room(len(set(names))))
            if not admitted[-1]:
                break
            missing = sorted(budget.admit(names))
            if number == kill_at:
                return admitted, sent + missing[: data.draw(st.integers(0, len(missing)))]
            sent += missing
        return admitted, sent

    whole, sent_by_one = life(set(), None)
    published: list[str] = []
    for kill_at in data.draw(st.lists(st.integers(0, max(0, len(batches) - 1)), max_size=5)):
        published += life(set(published), kill_at)[1]
    decisions, sent = life(set(published), None)
    published += sent
    assert decisions == whole
    assert len(published) == len(set(published)) <= limit and set(published) == set(sent_by_one)


def test_the_same_texts_weights_and_sampling_are_the_same_evaluation() -> None:
    key = evaluation_key({"a": "x", "b": "y"}, {"policy": 1}, {"temperature": 0.0})
    assert key == evaluation_key({"b": "y", "a": "x"}, {"policy": 1}, {"temperature": 0.0})
    others = [
        evaluation_key({"a": "y", "b": "x"}, {"policy": 1}, {"temperature": 0.0}),
        evaluation_key({"a": "x", "b": "y"}, {"policy": 2}, {"temperature": 0.0}),
        evaluation_key({"a": "x", "b": "y"}, {"policy": 1}, {}),
    ]
    assert len({key, *others}) == 4
    assert proposal_key(1, {"a": "x"}, ["a"]) != proposal_key(2, {"a": "x"}, ["a"])


def result(name: str, reward: float | None, **fields: Any) -> RolloutResult:
    call = CallText(
        "", '{"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "2+2?"}]}',
        '{"content": "5"}', {"solver": 1},
    )  # fmt: skip
    return RolloutResult(name, {"question": name}, fields.pop("outcome", "ok"), reward, calls=(call,), **fields)


def span(name: str, status: str = "ok", message: str = "", events: str = "", **attributes: str) -> dict[str, Any]:
    names = {key.replace("__", "."): value for key, value in attributes.items()}
    return {"name": name, "status": status, "status_message": message, "attributes": names, "events": events}


def test_failures_with_reasons_come_first() -> None:
    explained = result("told", 0.0, spans=(span("execute_tool", "error", "no such column"),))
    records = build_records([result("good", 1.0), result("silent", 0.0), explained], "solver", 10_000)
    assert [record["Inputs"] for record in records] == [
        f'{{"question": "{name}"}}' for name in ("told", "silent", "good")
    ]
    assert "no such column" in records[0]["Feedback"] and "Reward: 0. Outcome: ok." in records[1]["Feedback"]
    assert records[0]["Generated Outputs"] == "user: 2+2?\nassistant: 5"


def test_errors_tools_rewards_and_the_words_of_a_judge_are_shown() -> None:
    evaluation = {"gen_ai.evaluation.score.value": 0.2, "gen_ai.evaluation.explanation": "it did not round"}
    judged = json.dumps([{"name": "gen_ai.evaluation.result", "attributes": evaluation}])
    spans = (
        span("search", gen_ai__operation__name="execute_tool", gen_ai__tool__name="search"),
        span("judge", events=judged),
        span("reward", lightningbus__reward="0.2"),
    )
    (record,) = build_records(
        [result("a", None, outcome="agent_error", error="KeyError: 'x'", rewards={"style": 0.5}, spans=spans)],
        "solver",
        10_000,
    )
    for words in ("KeyError: 'x'", "Reward style: 0.5", "tool search", "it did not round", "Reward reward: 0.2"):
        assert words in record["Feedback"], words
    assert "Reward: none. Outcome: agent_error." in record["Feedback"]


def test_a_call_without_the_prompt_is_not_shown() -> None:
    (record,) = build_records([result("a", 0.0)], "checker", 10_000)
    assert record["Generated Outputs"] == "The prompt was in no model call of this rollout."


@given(
    st.lists(st.tuples(st.floats(0, 1), st.text(max_size=3000), st.text(max_size=3000)), max_size=12),
    st.integers(1000, 20_000),
)
def test_what_is_shown_stays_within_its_bound(each: list[tuple[float, str, str]], limit: int) -> None:
    results = [
        RolloutResult(str(n), text, "ok", reward, error, calls=(CallText("", "{}", text, {"p": 0}),))
        for n, (reward, text, error) in enumerate(each)
    ]
    records = build_records(results, "p", limit)
    assert sum(len(key) + len(value) for record in records for key, value in record.items()) <= limit
    assert bool(records) == bool(results)


def test_the_reflecting_model_is_asked_in_gepas_words_and_its_fenced_answer_is_the_prompt() -> None:
    request = build_request("Add.", [{"Inputs": "2+2", "Generated Outputs": "5", "Feedback": "Reward: 0."}])
    assert "Add." in request and "Reward: 0." in request
    assert extract_prompt("I think:\n```\nAdd twice.\n```\nDone.") == "Add twice."


def test_a_version_is_approved_unless_its_reward_falls_by_more_than_allowed() -> None:
    assert compare([0, 1], [0, 1], 0.0).is_approved and compare([0, 1], [1, 1], 0.0).is_approved
    worse = compare([1, 1, 1, 1], [1, 1, 1, 0], 0.0)
    assert not worse.is_approved and worse.reason == "held-out reward worse: 1 before, 0.75 after"
    assert compare([1, 1, 1, 1], [1, 1, 1, 0], 0.25).is_approved
    assert compare([0.5], [1.0], 0.0).standard_error is None


def settings(**changes: Any) -> OptimizeSettings:
    return OptimizeSettings.model_validate({
        "prompts": {"solver": {"text": "Add."}}, "tasks": "t.jsonl", "heldout": "h.jsonl", "budget": 100,
        "reflection": {"url": "http://127.0.0.1:1/v1", "model": "m"}, **changes,
    })  # fmt: skip


def test_a_budget_that_allows_no_proposal_is_refused() -> None:
    tasks, heldout = [TaskInput(str(n), n) for n in range(10)], [TaskInput(f"h{n}", n) for n in range(5)]
    check_settings(settings(budget=36), tasks, heldout)
    with pytest.raises(UserError, match=r"budget: 35 rollouts are too few: 10 tasks, .* need 36"):
        check_settings(settings(budget=35), tasks, heldout)
    with pytest.raises(UserError, match=r"optimize\.round_budget: 35 rollouts are too few"):
        check_settings(settings(round_budget=35), tasks, heldout)
    with pytest.raises(UserError, match=r"task '3' is in optimize\.tasks too"):
        check_settings(settings(), tasks, [TaskInput("3", 0)])
    with pytest.raises(UserError, match="with the name of the run is 20 characters too long"):
        check_settings(settings(), tasks, [TaskInput("x" * 128, 0)], "r" * 64)


def test_limits_may_be_raised_and_nothing_else_changed() -> None:
    tasks, heldout = [TaskInput("a", 1)], [TaskInput("b", 2)]
    key = describe_course(settings(), tasks, heldout)
    assert key == describe_course(
        settings(budget=900, round_budget=90, every=3, max_iterations=3, deadline=9.0), tasks, heldout
    )
    assert key != describe_course(settings(seed=1), tasks, heldout)
    assert key != describe_course(settings(), [TaskInput("a", 2)], heldout)


def test_a_round_has_what_the_others_left_and_no_more_than_its_own_budget() -> None:
    tasks, heldout = [TaskInput(str(n), n) for n in range(10)], [TaskInput(f"h{n}", n) for n in range(5)]
    assert find_limit(settings(), tasks, heldout, 0) == 100
    assert find_limit(settings(round_budget=40), tasks, heldout, 0) == 40
    assert find_limit(settings(round_budget=40), tasks, heldout, 64) == 36
    with pytest.raises(BudgetSpentError, match=r"of optimize\.budget 35 rollouts are left: .* needs 36"):
        find_limit(settings(round_budget=40), tasks, heldout, 65)


@pytest.mark.parametrize(
    ("versions", "name"),
    [({}, "optimize"), ({"policy": 3}, "optimize-v3"), ({"b": 7, "a": 12}, "optimize-v12_7")],
)
def test_a_round_is_named_by_its_weights(versions: dict[str, int], name: str) -> None:
    assert round_name(versions) == name and re.search(ROUND_PATTERN, name)
    assert not re.search(ROUND_PATTERN, f"{name}-greedy")
