"""The pages for those who come from elsewhere: their run files are training jobs, and their code runs as printed."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from lightningbus.bus.client import Bus
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.run.preflight.job_checks import parse_job
from lightningbus.run.preflight.trial_rollout import TrialTask, try_agent
from lightningbus.run.settings.run_file import RunSettings, validate_settings
from lightningbus.runners.settings import RunnerSettings
from lightningbus.tasks.task_loading import TaskInput
from lightningbus.tasks.task_publisher import TaskPublisher
from tests.deploy.commands import ROOT
from tests.examples.endpoint import Endpoint
from tests.polling import HANG_SECONDS
from tests.runners.conftest import ended, running
from tests.runners.conftest import task as published

PAGES = ("from-agent-lightning", "from-trl", "from-verl", "from-prime-rl", "from-art")
AGENTS = ROOT / "tests" / "agents"
PROMPT = [{"role": "user", "content": "What is 6 * 7?"}]
QUESTION = {"question": "What is 6 * 7?", "answer": "42"}
VERL_ROW = {
    "data_source": "openai/gsm8k",
    "prompt": PROMPT,
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "42"},
    "extra_info": {"split": "train", "index": 0},
}
GRPO_AGENT = """
def query_biogrid(sql_command: str) -> list[tuple]:
    '''Execute a command.

    Args:
        sql_command: The SQL command to execute.
    '''
    return [("a", 1)]


def correctness_reward(completions, answer, **kwargs):
    return [float(answer[0] in completions[0][-1]["content"])]


def structure_reward(completions, **kwargs):
    return [10.0 * [turn["role"] for turn in completions[0]].count("tool")]


def query_reward(completions, answer, **kwargs):
    queries = [call["function"]["arguments"].get("sql_command") for call in completions[0][0].get("tool_calls", [])]
    results = [turn["content"] for turn in completions[0] if turn["role"] == "tool"]
    return [100.0 * (queries == ["SELECT 1", None] and results[0] == [("a", 1)] and "error" in results[1])]
"""
"""In the shape of TRL's `examples/scripts/grpo_agent.py`; the tool's result reaches the rewards as a list."""
INTERPRETERS = {"from-agent-lightning": "AGENTLIGHTNING_PYTHON", "from-art": "ART_PYTHON"}
"""The variables that name an interpreter with the real package; without it a module of the same shape stands for it."""


def read_page(page: str) -> str:
    """The text of a page."""
    return (ROOT / "docs" / f"{page}.md").read_text()


def named_blocks(page: str) -> dict[str, str]:
    """The code blocks of a page that begin with the name of their file."""
    blocks = re.findall(r"```(?:python|yaml)\n(# ([\w.]+).*?)```", read_page(page), re.S)
    return {name: text for text, name in blocks}


@pytest.mark.parametrize("page", PAGES)
def test_the_run_file_of_a_page_is_a_training_job(page: str) -> None:
    settings = validate_settings(RunSettings, yaml.safe_load(named_blocks(page)["run.yaml"]), page)
    assert parse_job(settings, page).learner.max_steps


@pytest.mark.parametrize("page", PAGES)
def test_the_settings_that_a_page_names_exist(page: str) -> None:
    names = re.findall(r"`learner\.([a-z_.]+)", read_page(page))
    assert len(names) > 5
    for name in names:
        model: type[BaseModel] = LearnerSettings
        for part in name.rstrip(".").split("."):
            assert part in model.model_fields, f"{page}: learner.{name}"
            annotation = model.model_fields[part].annotation
            if not isinstance(annotation, type) or not issubclass(annotation, BaseModel):
                break  # verl's fields, for example, are in a mapping
            model = annotation


@pytest.mark.integration
@pytest.mark.parametrize(
    ("page", "task", "reward"),
    [
        ("from-agent-lightning", QUESTION, "1"),
        ("from-trl", {"prompt": PROMPT, "answer": "42"}, "1.1"),
        ("from-trl", {"prompt": "What is 6 * 7?", "answer": "43"}, "0.1"),
        ("from-verl", VERL_ROW, "1 (score 1, length 2)"),
        ("from-prime-rl", {"prompt": "24"}, "1"),
        ("from-art", QUESTION, "1"),
    ],
)
async def test_the_agent_of_a_page_runs_as_it_is_printed(
    tmp_path: Path, page: str, task: dict[str, Any], reward: str
) -> None:
    for name, text in named_blocks(page).items():
        (tmp_path / name).write_text(text)
    agent: dict[str, Any] = {"entrypoint": "agent:solve", "working_dir": tmp_path}
    if python := os.environ.get(INTERPRETERS.get(page, "")):
        agent |= {"python_executable": python, "env": ["LITELLM_LOCAL_MODEL_COST_MAP=True"]}
    else:
        agent["env"] = [f"PYTHONPATH={AGENTS / 'lightning' / 'shape'}:{AGENTS / 'art_shape'}"]
    trial = TrialTask(TaskInput("first", task), "train", "policy", HANG_SECONDS, {})
    (line,) = await try_agent(RunnerSettings.model_validate(agent), trial)
    assert f"1 model call, reward {reward}, " in line


async def test_tools_of_trl_are_called_and_its_rewards_see_the_calls(bus: Bus, tmp_path: Path) -> None:
    (tmp_path / "grpo_agent.py").write_text(GRPO_AGENT)
    (tmp_path / "agent.py").write_text(named_blocks("from-trl")["tools_agent.py"])

    def answer(messages: list[dict[str, Any]]) -> dict[str, Any]:
        if len(messages) > 1:
            return {"role": "assistant", "content": "It is *yes*."}
        functions = [("query_biogrid", '{"sql_command": "SELECT 1"}'), ("query_biogrid", "{no JSON")]
        calls = [
            {"id": f"call-{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for number, (name, arguments) in enumerate(functions)
        ]
        return {"role": "assistant", "content": None, "tool_calls": calls}

    async with Endpoint(answer).as_node(bus) as node, running(bus, entrypoint="agent:solve", working_dir=tmp_path):
        await TaskPublisher(bus).publish_task(
            published(input={"prompt": PROMPT, "answer": "yes"}, deadline=HANG_SECONDS)
        )
        (batch,) = await ended(bus)
    assert batch.end is not None and (batch.end.outcome, batch.end.reward) == ("ok", 121.0), batch.end
    assert node.requests[0]["tools"][0]["function"]["name"] == "query_biogrid"
