"""The rollout of a dry run: the agent's real process and gateway, answers that are scripted."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lightningbus.run.errors import UserError
from lightningbus.run.preflight.trial_rollout import (
    TrialTask,
    WantedReward,
    describe,
    find_missing_rewards,
    try_agent,
    try_tasks,
)
from lightningbus.runners.rollout import RolloutResult
from lightningbus.runners.settings import RunnerSettings
from lightningbus.tasks.task_loading import TaskInput
from tests.polling import HANG_SECONDS

pytestmark = pytest.mark.integration

AGENT = """
import json, sys

MESSAGES = [{"role": "user", "content": "What is 6 * 7?"}]


def chat(task, model="policy", **more):
    from openai import OpenAI

    return OpenAI(max_retries=0).chat.completions.create(model=model, messages=MESSAGES, **more)


def every_api(task):
    from anthropic import Anthropic
    from openai import OpenAI

    client = OpenAI(max_retries=0)
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chat(task, stream=True) if chunk.choices)
    with client.chat.completions.stream(model="policy", messages=MESSAGES) as stream:  # reads chunks by their `object`
        helped = stream.get_final_completion().choices[0].message.content
    message = Anthropic(max_retries=0).messages.create(model="policy", messages=MESSAGES, max_tokens=8)
    answers = [
        chat(task).choices[0].message.content,
        streamed,
        helped,
        chat(task, n=2).choices[1].message.content,
        client.completions.create(model="policy", prompt="6 * 7 =").choices[0].text,
        client.responses.create(model="policy", input="What is 6 * 7?").output_text,
        message.content[0].text,
    ]
    return {"reward": float(answers == [task["answer"]] * 7), "answers": answers}


def decides(task):
    if not chat(task).choices[0].message.content.startswith("search"):
        return 0.0
    return float(chat(task).choices[0].message.content == task["answer"])


async def with_endpoint(task, endpoint):
    from openai import AsyncOpenAI

    client = AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key, max_retries=0)
    answer = await client.chat.completions.create(model="policy", messages=MESSAGES)
    return float(answer.choices[0].message.content == task["answer"])


def continues(task):
    from openai import OpenAI

    messages = list(MESSAGES)
    for _ in range(2):
        answer = OpenAI(max_retries=0).chat.completions.create(model="policy", messages=messages)
        messages += [answer.choices[0].message.model_dump(), {"role": "user", "content": "Are you sure?"}]
    return 0.5


def asks_nobody(task):
    return 1.0


def has_no_reward(task):
    return chat(task).choices[0].message.content


def returns_nothing(task):
    chat(task)


def rewards_with_text(task):
    return {"reward": chat(task).choices[0].message.content}


def asks_another_model(task):
    return float(chat(task, model="gpt-4o").choices[0].message.content == "42")


def asks_roles(task):
    chat(task, model="policy:writer")
    chat(task, model="policy:checker")
    chat(task, model="frozen")
    return {"reward": {"reward": 1.0, "checker": 0.5}}


def asks_a_judge(task):
    return float(chat(task, model="judge").choices[0].message.content == "42")


def needs_json(task):
    return json.loads(chat(task).choices[0].message.content + "}")


def needs_a_field(task):
    return float(chat(task).choices[0].message.content == task["question"])


def needs_more(task, llm):
    return 1.0


if __name__ == "__main__":
    print(json.dumps(every_api(json.load(sys.stdin))))
"""


TASK = TaskInput("first", {"answer": "42"})
TRIAL = TrialTask(TASK, "train", "policy", HANG_SECONDS, {"temperature": 1.0})
ROLES = replace(
    TRIAL,
    model="writer",
    role_models={"writer": "writer", "checker": "checker"},
    served_models=["writer", "checker", "frozen"],
    trained_models=["writer", "checker"],
    wanted_rewards=[WantedReward("learners.1.reward", "'checker' is trained on", "chekcer")],
)


async def try_one(folder: Path, trial: TrialTask = TRIAL, **agent: Any) -> list[str]:
    (folder / "agent.py").write_text(AGENT)
    settings = RunnerSettings.model_validate({"working_dir": folder, **agent})
    return await try_agent(settings, trial)


@pytest.mark.parametrize(
    ("agent", "begins"),
    [
        ({"entrypoint": "agent:every_api"}, "agent:every_api: task 'first' with scripted answers: 8 model calls"),
        ({"command": [sys.executable, "agent.py"]}, f"{sys.executable}: task 'first' with scripted answers: 8 model"),
        ({"entrypoint": "agent:with_endpoint", "max_concurrent_per_process": 4}, "agent:with_endpoint: task 'first'"),
    ],
)
async def test_a_rollout_is_answered_by_every_api_and_described(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, agent: dict[str, Any], begins: str
) -> None:
    (line,) = await try_one(tmp_path, **agent)  # the second of two choices counts as a call of its own
    assert not caplog.records, "an agent's process that was ended by us is no news"
    assert line.startswith(begins) and ", reward 1, " in line and line.endswith(" s")


async def test_an_agent_that_fails_one_task_alone_is_tried_on_the_next(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    settings = RunnerSettings.model_validate({"working_dir": tmp_path, "entrypoint": "agent:needs_a_field"})
    second = replace(TRIAL, task=TaskInput("second", {"question": "42"}))
    warning, line = await try_tasks(settings, [TRIAL, second])
    assert warning.startswith(
        "warning: agent:needs_a_field: task 'first' failed when each answer of the model was '42'"
    )
    assert line.startswith("agent:needs_a_field: task 'second' with scripted answers: 1 model call, reward 1, ")
    with pytest.raises(UserError, match="task 'first' failed"):
        await try_tasks(settings, [TRIAL, replace(TRIAL, task=TaskInput("other", {}))])
    (line,) = await try_tasks(settings, [second, TRIAL])
    assert "'second'" in line, "a second task is for a failure alone"


async def test_a_conversation_goes_on(tmp_path: Path) -> None:
    (line,) = await try_one(tmp_path, entrypoint="agent:continues")
    assert "2 model calls, reward 0.5" in line


async def test_scripted_answers_lead_an_agent_to_its_second_turn(tmp_path: Path) -> None:
    (line,) = await try_one(tmp_path, entrypoint="agent:decides")
    assert "1 model call, reward 0, " in line
    assert line.endswith("; each answer of the model was '42' (runners.scripted_answers)")
    (line,) = await try_one(tmp_path, entrypoint="agent:decides", scripted_answers=["search 6 * 7", "42"])
    assert "2 model calls, reward 1, " in line and line.endswith(" s")


async def test_an_agent_that_asks_no_model_may_be_evaluated(tmp_path: Path) -> None:
    summary, warning = await try_one(tmp_path, replace(TRIAL, mode="eval"), entrypoint="agent:asks_nobody")
    assert "task 'first' with scripted answers: 0 model calls, reward 1, " in summary
    assert warning.startswith("warning: agent:asks_nobody made no model call: its client must call the base URL")


@pytest.mark.parametrize(
    ("entrypoint", "reason"),
    [
        ("agent:rewards_with_text", "when each answer of the model was '42': a reward is a number, not '42'"),
        ("agent:asks_another_model", "model 'gpt-4o' is not served; served: policy"),
        ("agent:needs_json", "JSONDecodeError: Extra data"),
        ("agent:needs_a_field", "KeyError: 'question': the task has the fields answer"),
        ("agent:needs_more", "nothing fills the parameter 'llm': the call is needs_more(task)"),
        ("absent:solve", "No module named 'absent'"),
        ("agent:asks_nobody", "made no model call, so that there is no token to train on: its client must call the"),
        ("agent:has_no_reward", "'42': the agent gave no reward: it returned the text '42', not a number; return a"),
        ("agent:returns_nothing", "the agent gave no reward: it returned nothing, not a number; return a number, or"),
    ],
)
async def test_what_would_train_no_rollout_is_an_error_that_says_why(
    tmp_path: Path, entrypoint: str, reason: str
) -> None:
    with pytest.raises(UserError) as failed:
        await try_one(tmp_path, entrypoint=entrypoint)
    assert reason in str(failed.value) and entrypoint in str(failed.value)


def test_a_deadline_is_an_error_too() -> None:
    result = RolloutResult("timeout", "the agent did not end within its deadline of 2 s")
    with pytest.raises(UserError, match=r"agent:solve: task .first. failed .*within its deadline of 2 s"):
        list(describe(RunnerSettings(entrypoint="agent:solve"), TRIAL, result, 1, 2.0))


def test_a_reward_function_that_fails_is_told_which_keys_it_gets() -> None:
    result = RolloutResult("grading_failed", "the reward function failed: OpenAIError: Missing credentials")
    with pytest.raises(UserError, match="a reward function gets no key but those named in"):
        list(describe(RunnerSettings(entrypoint="agent:solve"), TRIAL, result, 1, 2.0))


async def test_an_external_endpoint_is_not_asked_but_its_key_has_to_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoints = {"judge": {"url": "http://127.0.0.1:1/v1", "api_key_env": "JUDGE_KEY"}}
    monkeypatch.setenv("JUDGE_KEY", "sk-1")
    trial = replace(TRIAL, trained_models=["policy"])
    line, warning = await try_one(tmp_path, trial, entrypoint="agent:asks_a_judge", endpoints=endpoints)
    assert "1 model call, reward 1," in line
    assert warning == "warning: no call is of 'policy', which learns from its own calls alone; called: judge"
    monkeypatch.delenv("JUDGE_KEY")
    with pytest.raises(UserError, match="the environment of the runner has no JUDGE_KEY"):
        await try_one(tmp_path, entrypoint="agent:asks_a_judge", endpoints=endpoints)


async def test_every_model_of_the_job_answers_and_a_mistyped_reward_is_refused(tmp_path: Path) -> None:
    sentence = (
        "learners.1.reward: 'checker' is trained on the reward 'chekcer', which the agent did not give; "
        "did you mean 'checker'?"
    )
    with pytest.raises(UserError) as refused:
        await try_one(tmp_path, ROLES, entrypoint="agent:asks_roles")
    assert str(refused.value) == sentence
    wanted = [replace(each, name="checker") for each in ROLES.wanted_rewards]
    (line,) = await try_one(tmp_path, replace(ROLES, wanted_rewards=wanted), entrypoint="agent:asks_roles")
    assert "3 model calls, reward 1 (reward 1, checker 0.5)," in line


def test_rewards_that_were_given_are_listed_and_no_warning_is_made_of_those() -> None:
    wanted = [WantedReward("learner.reward", "'policy' is trained on", "style")]
    assert list(find_missing_rewards({"style": 0.0}, wanted)) == []
    (warning,) = find_missing_rewards({"reward": 0.0, "checker": 1.0}, wanted)
    assert warning.endswith("which the agent did not give; it gave: checker, reward")
    (warning,) = find_missing_rewards({}, wanted)
    assert warning.endswith("which the agent did not give; it gave none by name")
