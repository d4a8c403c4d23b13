"""Whether a training job can run: everything is read, loaded and started but the weights."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bus.tasks import read_problems
from learner.settings import LearnerSettings
from lightningbus.roles import UserError
from lightningbus.settings import HeldOut, RunSettings
from lightningbus.up import children
from runners.host import CannotStart, make_hosts
from runners.settings import RunnerSettings


@dataclass(frozen=True, slots=True)
class Job:
    """What a run file needs beside its processes to be a training job."""

    learner: LearnerSettings
    heldout: HeldOut


def job(settings: RunSettings, source: str) -> Job:
    """Raises `UserError` naming what the run file lacks."""
    lacking = [name for name in ("store", "inference", "runners", "learner", "heldout") if not getattr(settings, name)]
    if lacking:
        raise UserError(f"{source}: a training job needs {', '.join(lacking)} too")
    (learner,) = (
        child.settings
        for child in children(settings, settings.runs / settings.name)
        if isinstance(child.settings, LearnerSettings)
    )
    if learner.tasks is None:
        raise UserError(f"{source}: learner.tasks: a training job has tasks to train on")
    assert settings.heldout is not None
    return Job(learner, settings.heldout)


def looked_at(settings: RunSettings, job: Job) -> Iterator[str]:
    """Sentences of what was found to be in order; raises `UserError` at the first thing that is not."""
    assert job.learner.tasks is not None
    for path in (job.learner.tasks, job.heldout.tasks):
        problems = read_problems(path)
        yield f"{path}: {len(problems)} tasks"
    for path in dict.fromkeys([job.learner.model_path, *(node.model_path for node in settings.inference)]):
        yield f"{path}: {_model(path)}"
    for runner in {runner.model_dump_json(): runner for runner in settings.runners}.values():
        yield asyncio.run(_agent(runner))


def _model(path: Path) -> str:
    from transformers import AutoConfig, AutoTokenizer

    try:
        config = AutoConfig.from_pretrained(path, local_files_only=True)
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} holds no model with a tokenizer: {' '.join(str(error).split())[:200]}") from error
    if tokenizer.chat_template is None:
        raise UserError(f"{path}: its tokenizer has no chat template, so no chat can be rendered")
    return f"{config.model_type}, {config.num_hidden_layers} layers, {len(tokenizer)} tokens"


async def _agent(runner: RunnerSettings) -> str:
    if runner.command is not None:
        return f"{runner.command[0]}: started for each rollout"
    (host,) = make_hosts(runner.model_copy(update={"concurrency": 1}), [_nowhere])
    try:
        await host.start()
    except CannotStart as error:
        raise UserError(str(error)) from error
    finally:
        await host.stop()
    return f"{runner.agent}: imported by {runner.python or 'this interpreter'}"


def _nowhere() -> dict[str, str]:
    """An endpoint nobody listens at: an agent that is only imported asks nothing."""
    return {"OPENAI_BASE_URL": "http://127.0.0.1:9/v1", "OPENAI_API_KEY": "none"}
