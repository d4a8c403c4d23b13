"""Environments of verifiers: by `load_environment` (0.1), or as a taskset (0.4)."""

import asyncio
import contextlib
import hashlib
import importlib
import os
import sys
from collections.abc import Iterator
from typing import Any

import verifiers

from .rubric_failures import check_scores_alone, find_metrics, raise_failure, recording_failures, watch_rubric
from .wrong_arguments import check_names, describe_wrong_fields, drop_fields, find_unnamed, list_names


def make_adapter(name: str, arguments: dict[str, Any]) -> "EnvironmentAdapter | TasksetAdapter":
    """Make the adapter for the interface of the installed verifiers."""
    kind = EnvironmentAdapter if hasattr(verifiers, "load_environment") else TasksetAdapter
    return kind(name, arguments)


Adapter = make_adapter


class EnvironmentAdapter:
    """``load_environment(name, **arguments)``, its data sets and its ``run_rollout``."""

    is_endless = False

    def __init__(self, name: str, arguments: dict[str, Any]) -> None:
        load = None
        with contextlib.suppress(ImportError, AttributeError):  # verifiers looks elsewhere too, or says what is wrong
            load = importlib.import_module(name.replace("-", "_").split("/")[-1]).load_environment
            check_names(arguments, load)
        self._environment = verifiers.load_environment(name, **arguments)
        kinds: list[Any] = list(type(self._environment).__mro__)
        passed_on = {each for kind in kinds for each in list_names(kind.__init__)}
        for warning in find_unnamed(arguments, load, passed_on) if load is not None else ():
            print(f"warning: {warning}", file=sys.stderr)
        check_scores_alone(self._environment.rubric, verifiers.Rubric.score_rollout)
        self._metrics = find_metrics(self._environment.rubric)
        watch_rubric(self._environment.rubric)

    def tasks(self, split: str) -> Iterator[dict[str, Any]] | None:
        """Yield rows of the data set for training, or of the one for evaluation; None where it does not exist."""
        environment = self._environment
        if split == "train":
            with contextlib.suppress(ValueError):  # an environment only to evaluate on
                return self._rows(environment.get_dataset())
            return self._rows(environment.get_eval_dataset())
        has_train = environment.build_dataset() is not None
        return self._rows(environment.get_eval_dataset()) if has_train and environment.build_eval_dataset() else None

    def _rows(self, data: Any) -> Iterator[dict[str, Any]]:
        for number, row in enumerate(data):
            yield {"id": str(row.get("example_id", number)), "input": row}

    async def rollout(self, task: dict[str, Any], base_url: str, api_key: str, model: str) -> dict[str, Any]:
        """Play one rollout by the environment's own method, scored by its rubric; raise a failure of either.

        A metric whose function fails, and which is no part of the reward, is left out. Rewards by name are the metrics
        of functions that have a weight.
        """
        from openai import AsyncOpenAI
        from verifiers.clients import OpenAIChatCompletionsClient

        async with AsyncOpenAI(base_url=base_url, api_key=api_key, timeout=None) as client:
            with recording_failures() as failures:
                output = await self._environment.run_rollout(
                    task, OpenAIChatCompletionsClient(client), model, dict(self._environment.sampling_args or {})
                )
        if output["error"]:
            raise RuntimeError(f"the environment failed: {output['error']}")
        raise_failure(failures)
        metrics = {name: value for name, value in output["metrics"].items() if name not in failures}
        return {
            "reward": output["reward"],
            "rewards": {name: value for name, value in metrics.items() if name not in self._metrics},
            "metrics": metrics,
            "stop_condition": output.get("stop_condition"),
            "is_truncated": output["is_truncated"],
        }


class TasksetAdapter:
    """A taskset with the agents that play it: ``Env.run_slot``, scored by the task's rewards."""

    def __init__(self, name: str, arguments: dict[str, Any]) -> None:
        from verifiers.v1.utils.loaders import load_environment

        self._environment = load_environment(make_checked_config(name, arguments))
        self._serving = contextlib.AsyncExitStack()
        self._lock = asyncio.Lock()
        self._is_serving = False

    @property
    def is_endless(self) -> bool:
        """Whether the taskset makes tasks forever."""
        return not self._environment.taskset.bounded

    def tasks(self, split: str) -> Iterator[dict[str, Any]] | None:
        """Yield the tasks of the taskset; it has no held-out ones."""
        if split != "train":
            return None
        return (
            {
                "id": str(task.data.id or task.data.idx),
                "input": task.data.model_dump(mode="json", exclude_defaults=True),
            }
            for task in self._environment.taskset
        )

    async def rollout(self, task: dict[str, Any], base_url: str, api_key: str, model: str) -> dict[str, Any]:
        """Play one episode; its reward is the sum over the agents, its metrics are theirs; raise its failure.

        Rewards by name are those that the taskset declares as rewards.
        """
        import verifiers.v1 as vf

        await self._serve()
        task_type = type(self._environment.taskset).task_type()
        data = task_type.data_type().model_validate(task)
        (slot,) = self._environment.slots(task_type(data, self._environment.config.taskset.task))
        # The client reads its key from a variable of this process, and is kept under the variable's name.
        variable = f"MODEL_API_KEY_{hashlib.sha256(api_key.encode()).hexdigest()[:16]}"
        os.environ[variable] = api_key
        try:
            client = vf.EvalClientConfig(base_url=base_url, api_key_var=variable)
            episode = await self._environment.run_slot(slot, vf.ModelContext(model=model, client=client))
        finally:
            del os.environ[variable]
        if not episode.ok:
            errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
            raise RuntimeError(
                f"the episode failed: {errors[-1].type}: {errors[-1].message}" if errors else "it failed"
            )
        metrics: dict[str, float] = {}
        parts: dict[str, float] = {}
        for trace in episode.traces:
            prefix = f"{trace.agent.name}." if len(episode.traces) > 1 and trace.agent.name else ""
            rewards = {name: reward.value for name, reward in trace.rewards.items() if reward is not None}
            numbers = {name: value for name, value in trace.metrics.items() if value is not None}
            metrics |= {f"{prefix}{name}": value for name, value in (numbers | rewards).items()}
            parts |= {f"{prefix}{name}": value for name, value in rewards.items()}
        return {"reward": sum(trace.reward for trace in episode.traces), "rewards": parts, "metrics": metrics}

    async def _serve(self) -> None:
        """Start what the environment's agents share, for as long as this process lives."""
        async with self._lock:
            if not self._is_serving:
                await self._serving.enter_async_context(self._environment.serving())
                self._is_serving = True


def make_checked_config(name: str, arguments: dict[str, Any]) -> Any:
    """Call `make_config`; raise ValueError naming each wrong argument, its value and the names that are near."""
    from pydantic import ValidationError

    try:
        return make_config(name, arguments)
    except ValidationError as error:
        problems, config = error.errors(), None
        with contextlib.suppress(Exception):  # the fields are a hint
            config = make_config(name, drop_fields(arguments, problems))
        raise ValueError(describe_wrong_fields(problems, config)) from None


def make_config(name: str, arguments: dict[str, Any]) -> Any:
    """Build the environment's settings; agents run as processes of this machine unless the arguments choose otherwise.

    An agent without a harness of its own chats and uses the task's tools (``null``), and runs no commands.
    """
    from verifiers.v1.configs.agent import agent_config_fields
    from verifiers.v1.utils.loaders import default_harness_id, resolve_env_config

    taskset = {**arguments.get("taskset", {}), "id": name}
    config = resolve_env_config({**arguments, "taskset": taskset})
    roles: dict[str, Any] = {}
    for role in agent_config_fields(config):
        defaults: dict[str, Any] = {"runtime": {"type": "subprocess"}}
        if default_harness_id(name) == "bash":
            defaults["harness"] = {"id": "null"}
        roles[role] = {**defaults, **arguments.get(role, {})}
    return resolve_env_config({**arguments, **roles, "taskset": taskset})
