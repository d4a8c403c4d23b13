"""One rollout of an agent before training: the real processes and gateway, with scripted answers."""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lightningbus.bus.errors import CredentialsError
from lightningbus.common.name_suggestions import suggest_near_name
from lightningbus.inference.settings import InferenceSettings
from lightningbus.learner.rollouts.rejection_streak import CALL_ADVICE
from lightningbus.run.errors import UserError
from lightningbus.run.preflight.call_checks import UnfitCallError, check_calls
from lightningbus.run.preflight.scripted_engine import ModelCall
from lightningbus.run.preflight.scripted_node import ScriptedNode
from lightningbus.runners.agent.factory import uses_socket
from lightningbus.runners.agent.launcher import AgentStartError
from lightningbus.runners.agent.process import ProcessWatchdog
from lightningbus.runners.gateway.external.external_endpoints import ExternalEndpoints
from lightningbus.runners.gateway.server import Gateway
from lightningbus.runners.protocol.prompts import PromptChoice
from lightningbus.runners.recording.attempt import AttemptRecorder
from lightningbus.runners.rollout import RolloutResult, run_agent
from lightningbus.runners.settings import RunnerSettings
from lightningbus.runners.workspaces.factory import make_executors
from lightningbus.schemas.base import Mode
from lightningbus.schemas.tasks import Task
from lightningbus.tasks.task_loading import TaskInput


@dataclass(frozen=True, slots=True)
class WantedReward:
    """A reward that a model is trained on, or that a suite counts, by the setting that names it."""

    setting: str
    use: str
    """The user and the verb of a sentence about it, such as "'policy' is trained on"."""
    name: str


@dataclass(frozen=True, slots=True)
class TrialTask:
    """One of the first tasks of a job for an agent, and how the job would publish it."""

    task: TaskInput
    mode: Mode
    model: str
    deadline: float
    sampling_params: dict[str, Any]
    role_models: Mapping[str, str] = field(default_factory=dict)
    served_models: Sequence[str] = ()
    """Other models of the job."""
    trained_models: Sequence[str] = ()
    """Models of the job that learn from this task."""
    wanted_rewards: Sequence[WantedReward] = ()
    nodes: Sequence[InferenceSettings] = ()
    """Nodes whose vLLM gets the agent's calls too, to check that it accepts them."""
    prompts: Sequence[PromptChoice] = ()
    """Prompts that the agent may ask for by name."""
    is_here: bool = True
    """Whether the nodes start on this machine, so that their vLLM must start here."""


class TrialFailedError(UserError):
    """The agent, or the reward of its task, raised an error: another task may do."""


async def try_tasks(runner: RunnerSettings, trials: Sequence[TrialTask]) -> list[str]:
    """Try the agent on the first task, and on the next where it fails; return sentences about the rollouts.

    An agent that passes one of them can be trained: before that, failures are warnings. Raises `UserError` as
    `try_agent`, that of the first task where all fail.
    """
    failures: list[TrialFailedError] = []
    for trial in trials:
        try:
            lines = await try_agent(runner, trial)
        except TrialFailedError as error:
            failures.append(error)
        else:
            return [*(f"warning: {error}" for error in failures), *lines]
    raise failures[0]


async def try_agent(runner: RunnerSettings, trial: TrialTask) -> list[str]:
    """Run the agent once with scripted answers; return sentences about its rollout.

    Raises `UserError` if the agent cannot be started, if its rollout fails or gives nothing to train on, or if vLLM
    refuses one of its calls.
    External endpoints are not called: their models have scripted answers too. Their keys have to be there.
    """
    try:
        ExternalEndpoints(runner.endpoints, os.environ)
    except CredentialsError as error:
        raise UserError(str(error)) from error
    task = Task(
        id=trial.task.id,
        run_id="dry-run",
        agent=runner.agent_name,
        mode=trial.mode,
        input=trial.task.input,
        deadline=trial.deadline,
        model=trial.model,
        role_models=dict(trial.role_models),
        sampling_params=trial.sampling_params,
    )
    recorder = AttemptRecorder(task, 1, "dry-run", is_graded=runner.graded)

    async def choose_prompts(task: Task) -> tuple[PromptChoice, ...]:
        return tuple(trial.prompts)

    async with (
        ScriptedNode(_list_models(runner, trial), runner.scripted_answers).serving() as node,
        Gateway(
            node, _discard_spans, 1, runner.host, token_in_token_out=False, at_socket=uses_socket(runner)
        ) as gateway,
        ProcessWatchdog() as watchdog,
    ):
        (slot,) = gateway.slots
        settings = runner.model_copy(update={"concurrency": 1})
        (executor,) = make_executors(settings, [slot.environment], watchdog, gateway.paths)
        try:
            await executor.start()
            started_at = time.monotonic()
            result = await run_agent(executor, slot, task, recorder, choose_prompts)
            seconds = time.monotonic() - started_at
        except AgentStartError as error:
            raise UserError(str(error)) from error
        finally:
            await executor.stop()
    lines = list(describe(runner, trial, result, recorder.calls, seconds))
    lines += find_untrained_calls(node.calls, trial.trained_models)
    try:
        lines += [f"warning: {each}" async for each in check_calls(node.calls, trial.nodes, is_here=trial.is_here)]
    except UnfitCallError as error:
        raise UserError(f"{_name_of(runner)}: a call of task {trial.task.id!r} would fail: {error}") from error
    return lines + list(find_missing_rewards(result.rewards, trial.wanted_rewards))


def _list_models(runner: RunnerSettings, trial: TrialTask) -> list[str]:
    """List every model that a call may name, once."""
    return list(dict.fromkeys([trial.model, *trial.role_models.values(), *trial.served_models, *runner.endpoints]))


async def _discard_spans(recorder: AttemptRecorder, seconds: float) -> None:
    recorder.outbox.clear()


def describe(
    runner: RunnerSettings, trial: TrialTask, result: RolloutResult, num_calls: int, seconds: float
) -> Iterator[str]:
    """Describe a rollout with scripted answers, line by line. Pure.

    Raises `UserError` if it failed or has no reward, or if a training task made no model call: no such rollout is
    trained.
    """
    name, task = _name_of(runner), f"task {trial.task.id!r}"
    if result.outcome != "ok":
        failure = f"{name}: {task} failed when {_list_answers(runner)}: {result.error}"
        error = TrialFailedError if result.outcome == "agent_error" else UserError
        is_graded = result.outcome == "grading_failed"
        advice = "a reward function gets no key but those named in runners.env, and " if is_graded else ""
        raise error(f"{failure}; {advice}runners.scripted_answers gives others")
    if not num_calls and trial.mode == "train":
        raise UserError(f"{name}: {task} made no model call, so that there is no token to train on: its {CALL_ADVICE}")
    reward = f"reward {result.reward:g}" if result.reward is not None else "no reward"
    if result.rewards:
        reward += f" ({', '.join(f'{part} {value:g}' for part, value in result.rewards.items())})"
    calls = f"{num_calls} model call{'' if num_calls == 1 else 's'}"
    judges = f"; not asked, their answers were scripted too: {', '.join(runner.endpoints)}" if runner.endpoints else ""
    hint = "" if result.reward or not num_calls else f"; {_list_answers(runner)} (runners.scripted_answers)"
    yield f"{name}: {task} with scripted answers: {calls}, {reward}, {seconds:.1f} s{judges}{hint}"
    if not num_calls:
        yield f"warning: {name} made no model call: its {CALL_ADVICE}"


def _list_answers(runner: RunnerSettings) -> str:
    *first, last = map(repr, runner.scripted_answers)
    return f"the model answered {', '.join(first)}, then {last}" if first else f"each answer of the model was {last}"


def _name_of(runner: RunnerSettings) -> str:
    return runner.entrypoint or (runner.command or [""])[0]


def find_missing_rewards(returned: Mapping[str, float], wanted: Sequence[WantedReward]) -> Iterator[str]:
    """Yield a warning for each reward that is wanted and that the agent did not give. Pure.

    Raises `UserError` for one that is likely a typing error, as the agent gave another of a similar name.
    """
    names = f"it gave: {', '.join(sorted(returned))}" if returned else "it gave none by name"
    for reward in wanted:
        if reward.name not in returned:
            what = f"{reward.use} the reward {reward.name!r}, which the agent did not give"
            if near := suggest_near_name(reward.name, returned):
                raise UserError(f"{reward.setting}: {what}; {near}")
            yield f"warning: {reward.setting}: {what}; {names}"


def find_untrained_calls(calls: Sequence[ModelCall], trained: Sequence[str]) -> Iterator[str]:
    """Yield a warning if all calls are of models that do not learn from them. Pure."""
    called = {str(call.body.get("model")) for call in calls}
    if trained and called and called.isdisjoint(trained):
        yield (
            f"warning: no call is of {' or '.join(map(repr, trained))}, which learns from its own calls alone; "
            f"called: {', '.join(sorted(called))}"
        )
