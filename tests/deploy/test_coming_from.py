"""The pages for those who come from elsewhere: their run files are training jobs, and their code runs as printed."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from bus.task_file import TaskInput
from learner.settings.learner import LearnerSettings
from lightningbus.run.preflight import parse_job
from lightningbus.run.settings import RunSettings, validate_settings
from lightningbus.run.trial_rollout import TrialTask, try_agent
from runners.settings import RunnerSettings
from tests.deploy.commands import ROOT

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
            if isinstance(annotation, type) and issubclass(annotation, BaseModel):
                model = annotation


@pytest.mark.integration
@pytest.mark.parametrize(
    ("page", "task", "reward"),
    [
        ("from-agent-lightning", QUESTION, "1"),
        ("from-trl", {"prompt": PROMPT, "answer": "42"}, "1.1"),
        ("from-trl", {"prompt": "What is 6 * 7?", "answer": "43"}, "0.1"),
        ("from-verl", VERL_ROW, "1"),
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
    trial = TrialTask(TaskInput("first", task), "train", "policy", 60.0, {})
    (line,) = await try_agent(RunnerSettings.model_validate(agent), trial)
    assert f"1 model call, reward {reward}, " in line
