"""A request for rollouts: run, agent, number of samples and versions. Pure."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from lightningbus.schemas.subjects import DEFAULT_POLICY
from lightningbus.schemas.tasks import Task
from lightningbus.tasks.task_loading import TaskInput

SAMPLINGS = {"greedy": {"temperature": 0.0}, "sampled": {"temperature": 1.0}}
"""Sampling settings by the name of the sampling, which ends the name of the evaluation."""
ROLLOUT_SECONDS = 60.0
"""Default seconds that a rollout may take, where no learner of the run says it."""

ANSWERING_SETTINGS = frozenset(
    {"entrypoint", "command", "working_dir", "agent_name", "reward_fn", "graded", "scripted_answers", "endpoints"}
)
"""Settings of a runner that decide which answers and rewards its agent gives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRequest:
    """The conditions of rollouts, the same for each task."""

    run: str = "run"
    agent: str = "default"
    mode: str | None = None
    """``train`` or ``eval``; None: train, eval with an ``evaluation``."""
    evaluation: str = ""
    """Name of the evaluation they belong to."""
    model: str = DEFAULT_POLICY
    """The model that agents call by name."""
    role_models: Mapping[str, str] = field(default_factory=dict)
    """Models that answer for some roles of the agent."""
    weight_versions: Mapping[str, int] = field(default_factory=dict)
    """Weight version, by model, that alone may answer the model's calls; other models answer from their current one."""
    prompt_versions: Mapping[str, int] = field(default_factory=dict)
    """Version of each prompt, by its name, that is put into the calls; other prompts have their released one."""
    samples: int = 1
    """Rollouts of each task."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Sampling settings forced on every model call."""
    rollout_timeout: float = ROLLOUT_SECONDS
    """Seconds a rollout may take; one that takes longer ends as ``timeout``."""
    deadline: float = 120.0
    """Seconds without the end of a rollout, beyond ``rollout_timeout``, after which they are given up."""
    reward: str = ""
    """Name of the reward that counts; empty: the main one."""
    is_reward_of_all: bool = False
    """Whether `reward` counts for every model that answers; else each counts with the one that it is trained on."""
    pass_reward: float = 1.0
    """Reward from which on a rollout has passed."""
    id_parts: Sequence[str] = ()
    """Parts of task ids after the run's name: what keeps rollouts under other conditions apart.

    An evaluation puts its label and its versions before them.
    """

    nonce: str = ""
    """Apart from ids: the bus accepts rollouts again that it had under another nonce and that nobody takes any more."""

    @property
    def patience(self) -> float:
        """Seconds without the end of a rollout after which they are given up."""
        return self.deadline + self.rollout_timeout

    @property
    def id_suffix(self) -> str:
        """End of all task ids: ``@run-greedy-v3``."""
        return "@" + "-".join(filter(None, (self.run, *self.id_parts)))

    def with_sampling(self, name: str) -> Self:
        """Return the request for one of `SAMPLINGS`: an evaluation of its own, with one greedy answer to each task."""
        return replace(
            self,
            evaluation="-".join(filter(None, (self.evaluation, name))),
            sampling=SAMPLINGS[name],
            samples=self.samples if name == "sampled" else 1,
        )

    def with_versions_in_ids(self) -> Self:
        """Return the request with its evaluation and the pinned versions in front of the other parts of task ids."""
        weights = f"v{format_versions(self.weight_versions)}" if self.weight_versions else ""
        prompts = f"p{format_versions(self.prompt_versions)}" if self.prompt_versions else ""
        return replace(self, id_parts=(self.evaluation, weights, prompts, *self.id_parts))

    def tasks(self, inputs: Iterable[TaskInput]) -> Iterator[Task]:
        """Yield ``samples`` rollouts of each task."""
        return expand_samples(
            inputs,
            self.samples,
            self.id_suffix,
            run_id=self.run,
            agent=self.agent,
            mode=self.mode or ("eval" if self.evaluation else "train"),
            evaluation=self.evaluation,
            model=self.model,
            role_models=dict(self.role_models),
            weight_versions=dict(self.weight_versions),
            prompt_versions=dict(self.prompt_versions),
            sampling_params=dict(self.sampling),
            deadline=self.rollout_timeout,
            reward_name=self.reward if self.is_reward_of_all else None,
        )


@dataclass(frozen=True, slots=True)
class EvaluationJob:
    """Evaluations of one version of each model, by sampling."""

    request: RolloutRequest
    """Its ``evaluation`` begins their names, which end with the sampling."""
    tasks: Sequence[TaskInput]
    samplings: Sequence[str]
    """Names of `SAMPLINGS`."""
    versions: Mapping[str, int | None]
    """Pinned version of each model; None: the newest."""

    def build_requests(self, pinned: RolloutRequest) -> dict[str, RolloutRequest]:
        """Return the request of each sampling, with the versions that ``pinned`` has.

        The number of samples keeps rollouts of ``sampled`` apart. A greedy one has a single sample in any case.
        """
        requests = {name: pinned.with_sampling(name) for name in self.samplings}
        return {
            name: replace(each, id_parts=(*each.id_parts, f"n{each.samples}")) if each.samples > 1 else each
            for name, each in requests.items()
        }


def digest_conditions(conditions: Mapping[str, Any], inputs: Sequence[TaskInput]) -> str:
    """Return a digest of an agent's settings and its tasks: an evaluation goes on with rollouts of these alone."""
    tasks = [(task.id, task.input, task.labels) for task in inputs]
    return hashlib.sha256(json.dumps([conditions, tasks], default=str, sort_keys=True).encode()).hexdigest()[:8]


def format_versions(versions: Mapping[str, int]) -> str:
    """Format versions as a part of ids: ``3``, or those of several models, in the order of their names: ``3_7``."""
    return "_".join(str(versions[model]) for model in sorted(versions))


def expand_samples(inputs: Iterable[TaskInput], samples: int, suffix: str = "", **fields: Any) -> Iterator[Task]:
    """Yield ``samples`` rollouts of each task; ``fields`` are `Task`'s others, the same for all."""
    for task in inputs:
        for sample in range(samples):
            yield Task(
                id=task.id + suffix,
                input=task.input,
                labels=task.labels,
                sample_index=sample,
                group_size=samples,
                **fields,
            )
