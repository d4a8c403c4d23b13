"""Functions in processes of their own, judges behind an endpoint, and the cache."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from lightningbus.graders.errors import GraderError
from lightningbus.graders.grade import Grade
from lightningbus.graders.grading import open_grading
from lightningbus.graders.judges.judge import read_answer
from lightningbus.graders.judges.sampling_fields import SamplingFields
from lightningbus.graders.settings import GraderSettings
from lightningbus.graders.submission import Submission
from tests.graders.endpoint import (
    Refusal,
    as_a_reasoning_model,
    as_a_small_model,
    as_a_strict_server,
    greater_of,
    judging,
    score_of,
)

pytestmark = pytest.mark.integration

FUNCTIONS = Path(__file__).parent / "functions"


def submissions(*results: Any) -> list[Submission]:
    return [
        Submission("r", "t", f"t.{number}", f"t.{number}-1", number, len(results), {"answer": 4}, result)
        for number, result in enumerate(results)
    ]


def settings(graders: dict[str, Any], **changes: Any) -> GraderSettings:
    return GraderSettings.model_validate({"graders": graders, "working_dir": FUNCTIONS, "processes": 1, **changes})


async def grade(checked: GraderSettings, *results: Any) -> list[Grade]:
    async with open_grading(checked) as grading:
        return await grading.grade(submissions(*results))


async def test_functions_give_rewards_by_name_and_what_they_print_is_no_reply() -> None:
    graders = {"right": {"function": "scores:is_right", "weight": 2}, "talk": {"function": "scores:length_of_talk"}}
    first, second = await grade(settings(graders), 4, 5)
    assert (first.reward, first.rewards) == (2.0, {"right": 1.0, "talk": 0.0})
    assert (second.reward, second.error) == (0.0, "")


async def test_a_function_that_fails_costs_its_own_rollout_alone_and_is_tried_again(tmp_path: Path) -> None:
    graders = {"f": {"function": "scores:by_command"}}
    results = ["exit", "raise", "nothing", "nan", "good", f"once {tmp_path / 'marker'}", "hang"]
    grades = await grade(settings(graders, max_attempts=2, function_timeout_seconds=1.0, processes=2), *results)
    assert [each.reward for each in grades] == [None, None, None, None, 0.5, 0.5, None]
    for each, part in zip(
        grades, ("ended its process", "no such answer", "gave None", "gave nan", "", "", "in 1 s"), strict=True
    ):
        assert part in each.error and each.error.endswith("(2 tries)") == bool(part), each


async def test_a_function_may_return_a_number_of_another_library() -> None:
    kinds = {"float32": 0.5, "int64": 1.0, "bool": 1.0, "array": 0.5, "decimal": 0.5, "list": None, "vector": None}
    grades = await grade(settings({"f": {"function": "scores:of_kind"}}, max_attempts=1), *kinds)
    assert [each.reward for each in grades] == [*kinds.values()]
    assert "gave [0.5], which is not a reward" in grades[-2].error


async def test_a_function_that_cannot_be_loaded_ends_the_grader() -> None:
    with pytest.raises(
        GraderError, match=r"graders\.f: scores:missing cannot be loaded in .*has no attribute 'missing'"
    ):
        await grade(settings({"f": {"function": "scores:missing"}}))


def judge(url: str, **changes: Any) -> dict[str, Any]:
    return {
        "judge": {
            "url": url,
            "model": "m",
            "rubric": "more is better",
            "price": {"input": 2.0, "output": 5.0},
            **changes,
        }
    }


async def test_a_judge_scores_each_rollout_once_and_what_it_said_is_kept(tmp_path: Path) -> None:
    async with judging(score_of) as endpoint:
        endpoint.seconds = 0.05
        checked = settings({"j": judge(endpoint.url, concurrency=2)}, cache=tmp_path / "deep" / "cache.sqlite")
        grades = await grade(checked, 0, 5, 10, 7, 3)
        assert [each.reward for each in grades] == [0.0, 0.5, 1.0, 0.7, 0.3]
        assert [round(each.cost, 9) for each in grades] == [0.00025] * 5
        assert endpoint.most_at_once == 2 and len(endpoint.requests) == 5
        again = await grade(checked, 0, 5, 10, 7, 3)
        assert [each.reward for each in again] == [each.reward for each in grades] and len(endpoint.requests) == 5
        assert [call.is_cached for each in again for call in each.calls] == [True] * 5
        assert sum(each.cost for each in again) == 0.0


async def test_pairs_of_a_group_are_compared_in_both_orders() -> None:
    async with judging(greater_of) as endpoint:
        graders = {"j": judge(endpoint.url, compare="pairs")}
        grades = await grade(settings(graders), 3, 1, 2)
        assert [each.reward for each in grades] == [1.0, 0.0, 0.5] and len(endpoint.requests) == 6
        (alone,) = await grade(settings(graders), 3)
        assert alone.reward is None and "no other rollout of its group" in alone.error
        endpoint.answer = lambda text: '{"better": "first"}'
        swayed = await grade(settings(graders), 5, 6)
        assert [each.reward for each in swayed] == [0.5, 0.5]


async def test_an_endpoint_that_does_not_answer_is_asked_again_and_not_for_ever() -> None:
    async with judging(score_of) as endpoint:
        endpoint.faults.extend([503, 429])
        (good,) = await grade(settings({"j": judge(endpoint.url)}), 10)
        assert good.reward == 1.0 and len(endpoint.requests) == 3
        endpoint.faults.extend([500] * 100)
        (bad,) = await grade(settings({"j": judge(endpoint.url, patience_seconds=0)}), 10)
        assert bad.reward is None and bad.error == "j: judge 'j' does not answer: status 500"
        endpoint.faults.clear()
        endpoint.faults.append(400)
        (refused,) = await grade(settings({"j": judge(endpoint.url)}), 10)
        assert refused.error.startswith("j: judge 'j' refuses a request: status 400")


async def test_a_busy_endpoint_is_asked_again_when_it_says() -> None:
    async with judging(score_of) as endpoint:
        endpoint.headers["Retry-After"] = "2"
        endpoint.faults.append(429)
        started = time.monotonic()
        (good,) = await grade(settings({"j": judge(endpoint.url)}), 10)
        assert good.reward == 1.0 and len(endpoint.requests) == 2 and time.monotonic() - started >= 2
        endpoint.headers["Retry-After"] = "3600"
        endpoint.faults.append(429)
        (bad,) = await grade(settings({"j": judge(endpoint.url, patience_seconds=30)}), 10)
        assert bad.error == "j: judge 'j' does not answer: status 429" and time.monotonic() - started < 20


@pytest.mark.parametrize("status", [401, 403])
async def test_a_refusal_after_an_answer_is_not_the_keys(status: int) -> None:
    async with judging(score_of) as endpoint, open_grading(settings({"j": judge(endpoint.url)})) as grading:
        await grading.grade(submissions(1))
        endpoint.faults.append(status)
        (good,) = await grading.grade(submissions(10))
        assert good.reward == 1.0


@pytest.mark.parametrize(
    ("message", "text"),
    [({}, ""), ({"content": None, "refusal": "I will not."}, "I will not."), ({"content": "4", "refusal": None}, "4")],
)
def test_an_answer_without_text_is_an_answer(message: dict[str, Any], text: str) -> None:
    """A model that has spent its tokens on thoughts answers without content at some endpoints."""
    body = {"choices": [{"message": {"role": "assistant", **message}, "finish_reason": "length"}]}
    assert read_answer(json.dumps(body).encode()).text == text


@pytest.mark.parametrize(
    ("reason", "tried"),
    [
        ("Invalid max_tokens value, the valid range of max_tokens is [1, 8192]", None),
        ("max_tokens must be at least 16", None),
        ("Model only accepts Temperature = 1", SamplingFields(has_temperature=False)),
        ("Unrecognized request argument supplied: max_tokens", SamplingFields("max_completion_tokens")),
    ],
)
def test_fields_are_left_out_where_an_endpoint_refuses_them_and_not_their_number(
    reason: str, tried: SamplingFields | None
) -> None:
    assert SamplingFields().after_refusal(reason) == tried


@pytest.mark.parametrize(
    ("refuse", "sent", "num_refused"),
    [(as_a_reasoning_model, {"max_completion_tokens"}, 2), (as_a_strict_server, set(), 2)],
)
async def test_fields_that_an_endpoint_refuses_are_left_out_of_later_questions(
    refuse: Refusal, sent: set[str], num_refused: int
) -> None:
    async with judging(score_of) as endpoint:
        endpoint.refuse = refuse
        grades = await grade(settings({"j": judge(endpoint.url, concurrency=1, max_calls=3)}), 0, 5, 10)
        assert [each.reward for each in grades] == [0.0, 0.5, 1.0]
        assert len(endpoint.requests) == 3 + num_refused
        assert set(endpoint.requests[-1]) == {"model", "messages", *sent}


async def test_a_number_that_is_too_large_is_no_reason_to_send_none() -> None:
    async with judging(score_of) as endpoint:
        endpoint.refuse = as_a_small_model
        (refused,) = await grade(settings({"j": judge(endpoint.url)}), 10)
        assert "is too large: 1024" in refused.error and len(endpoint.requests) == 1


@pytest.mark.parametrize("usage", ["1e999", "-5", "1" * 400, '"many"', "[7]", "true", "null"])
async def test_a_count_of_tokens_that_is_nonsense_costs_nothing(usage: str) -> None:
    body = f'{{"choices": [{{"message": {{"content": "4"}}}}], "usage": {{"prompt_tokens": {usage}}}}}'
    assert read_answer(body.encode()).prompt_tokens in (0, 1)
    for wrong in (usage, f'{{"prompt_tokens": {usage}, "completion_tokens": 10}}'):
        whole = f'{{"choices": [{{"message": {{"content": "4"}}}}], "usage": {wrong}}}'
        assert read_answer(whole.encode()).text == "4"


def test_thoughts_among_the_parts_of_an_answer_are_not_its_text() -> None:
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "3?"}]}, {"type": "text", "text": "4\\ud800"}]
    body = json.dumps({"choices": [{"message": {"content": parts}}]}).replace("\\\\", "\\")
    assert read_answer(body.encode()).text == "4?"


async def test_a_judge_without_a_usable_answer_is_tried_a_few_times_and_nothing_of_it_is_kept(tmp_path: Path) -> None:
    async with judging(lambda text: "I cannot say.") as endpoint:
        checked = settings({"j": judge(endpoint.url)}, max_attempts=2, cache=tmp_path / "cache.sqlite")
        (bad,) = await grade(checked, 10)
        assert bad.reward is None and "no JSON object" in bad.error and len(bad.calls) == len(endpoint.requests) == 2
        endpoint.answer = score_of
        (good,) = await grade(checked, 10)
        assert good.reward == 1.0


async def test_calls_are_bounded_and_a_refused_key_ends_the_grader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "secret")
    async with judging(score_of) as endpoint:
        graders = {"j": judge(endpoint.url, max_calls=2, api_key_env="JUDGE_KEY")}
        grades = await grade(settings(graders), 1, 2, 3)
        assert sum(each.reward is None and "has made its 2 calls" in each.error for each in grades) == 1
        assert set(endpoint.keys) == {"Bearer secret"}
        endpoint.faults.append(401)
        with pytest.raises(GraderError, match="refuses the key in JUDGE_KEY: status 401"):
            await grade(settings(graders), 1)
        monkeypatch.delenv("JUDGE_KEY")
        with pytest.raises(GraderError, match="the environment has no JUDGE_KEY"):
            await grade(settings(graders), 1)
