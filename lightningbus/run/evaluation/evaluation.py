"""Held-out reward of one weight version, measured through the same bus, runners and inference nodes."""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError
from pydantic import BaseModel, ConfigDict, Field

from lightningbus.bus.client import Bus
from lightningbus.run.errors import UserError
from lightningbus.run.evaluation.failures import describe_failures
from lightningbus.run.evaluation.publishing import expand_samples, publish_all
from lightningbus.schemas import ids
from lightningbus.schemas.subjects import DEFAULT_POLICY
from lightningbus.tasks.task_file import TaskInput

log = logging.getLogger(__name__)

NO_ROLES: Mapping[str, str] = MappingProxyType({})
NO_PROMPTS: Mapping[str, int] = MappingProxyType({})
SAMPLINGS = {"greedy": {"temperature": 0.0}, "sampled": {"temperature": 1.0}}
"""How problems are answered, by the label of the evaluation."""
ROLLOUT_SECONDS = 60.0
"""How long a rollout may take where no learner of the run says it."""
NODE_SECONDS = 600.0
"""Longest wait for a node that serves the version."""

ENDED = "SELECT rollout_id FROM rollouts WHERE run_id = {run_id:String} AND endsWith(task_id, {suffix:String})"
NUM_ENDED = "SELECT count() FROM rollouts WHERE run_id = {run_id:String} AND endsWith(task_id, {suffix:String})"
# By problem first: the answers to one problem are not independent of each other.
RESULTS = """
SELECT sum(num_ok), ifNull(avg(reward), 0.), if(count(reward) > 1, stddevSamp(reward) / sqrt(count(reward)), NULL)
FROM (
    SELECT countIf(outcome = 'ok') AS num_ok,
        sumIf(own_reward, outcome = 'ok') / nullIf(countIf(outcome != 'reward_timeout'), 0) AS reward
    FROM
    (
        SELECT task_id, outcome, ifNull(if({reward:String} = '', reward, rewards[{reward:String}]), 0) AS own_reward
        FROM rollouts WHERE run_id = {run_id:String} AND endsWith(task_id, {suffix:String})
    )
    GROUP BY task_id
)
"""
VERSIONS = """
SELECT c.model, groupUniqArrayArray(p.token_versions) FROM completions AS p
INNER JOIN (
    SELECT execution_id, call, model FROM model_calls
    WHERE run_id = {run_id:String} AND endsWith(task_id, {suffix:String})
) AS c USING (execution_id, call)
WHERE p.run_id = {run_id:String} AND endsWith(p.task_id, {suffix:String}) GROUP BY c.model
"""

FAILED = """
SELECT outcome, error FROM rollouts
WHERE run_id = {run_id:String} AND endsWith(task_id, {suffix:String}) AND outcome != 'ok'
"""


class Evaluation(BaseModel):
    """One evaluation of one weight version."""

    model_config = ConfigDict(frozen=True)

    label: str = Field(description="how the problems were answered: greedy or sampled")
    version: int = Field(description="weight version of the model that agents call by name")
    versions: dict[str, int] = Field({}, description="weight version of each model that was pinned")
    prompt_versions: dict[str, int] = Field({}, description="version of each prompt that was pinned")
    mean_reward: float = Field(
        description="mean reward of all rollouts; a failed one counts as 0, and one without a grade not at all"
    )
    standard_error: float | None = Field(description="of that mean, over problems; none for a single problem")
    num_problems: int = Field(description="held-out problems")
    rollouts: int = Field(description="answers: problems times samples")
    ok: int = Field(description="answers whose agent ended well")
    failures: str = Field("", description="how many rollouts failed, and the most frequent error; empty: none")
    seconds: float = Field(description="how long it took; for the part after a resume, if there was one")

    @property
    def key(self) -> tuple[object, ...]:
        """What was evaluated in which way."""
        return self.label, self.version, sorted(self.versions.items()), sorted(self.prompt_versions.items())

    def format_mean(self) -> str:
        """The mean reward with its standard error."""
        return format_mean(self.mean_reward, self.standard_error)


def format_mean(mean: float, error: float | None) -> str:
    """A mean reward with its standard error."""
    return f"{mean:.2f}" + (f" ± {error:.2f}" if error is not None else "")


def format_versions(versions: Mapping[str, int]) -> str:
    """Versions as a part of ids: ``3``, or those of several models, in the order of their names: ``3_7``."""
    return "_".join(str(versions[model]) for model in sorted(versions))


def format_label(versions: Mapping[str, int]) -> str:
    """Versions in words: ``version 3``, or with several models ``versions checker 7, writer 3``."""
    if len(versions) == 1:
        return f"version {next(iter(versions.values()))}"
    return "versions " + ", ".join(f"{model} {versions[model]}" for model in sorted(versions))


async def evaluate(
    bus: Bus,
    sql: Client,
    run: str,
    problems: Sequence[TaskInput],
    *,
    label: str,
    versions: Mapping[str, int],
    samples: int,
    sampling: dict[str, Any],
    deadline: float = 120.0,
    rollout_timeout: float = ROLLOUT_SECONDS,
    model: str = DEFAULT_POLICY,
    role_models: Mapping[str, str] = NO_ROLES,
    prompt_versions: Mapping[str, int] = NO_PROMPTS,
    agent: str = "default",
    reward: str = "",
) -> Evaluation:
    """Publish every problem ``samples`` times, pinned to weight versions, and wait for all results in ClickHouse.

    ``versions`` has one version of each model that is pinned, ``model`` among them: the one agents call by name.
    ``role_models`` are the models that answer for some roles, ``prompt_versions`` the prompts of all rollouts.
    ``reward`` names the reward that counts; empty: the main one. Results that are there already count: only what is
    missing is published. A rollout that takes longer than ``rollout_timeout`` seconds ends as `timeout`; like any other
    that fails it counts as 0. Raises `UserError` when none ends for ``deadline`` seconds more than that, or when a
    token came from another version.
    """
    started, patience = time.monotonic(), deadline + rollout_timeout
    suffix = f"@{run}-{label}-v{format_versions(versions)}"
    if prompt_versions:
        suffix += f"-p{format_versions(prompt_versions)}"
    parameters = {"run_id": run, "suffix": suffix, "reward": reward}
    tasks = list(
        expand_samples(
            problems,
            samples,
            suffix,
            run_id=run,
            agent=agent,
            mode="eval",
            evaluation=label,
            model=model,
            role_models=dict(role_models),
            weight_versions=dict(versions),
            prompt_versions=dict(prompt_versions),
            sampling_params=sampling,
            deadline=rollout_timeout,
        )
    )
    num_ended = 0
    try:
        async with asyncio.timeout(patience) as limit, bus.fleet("store") as stores:

            async def query(statement: str) -> Sequence[Sequence[Any]]:
                while True:
                    try:
                        return (await asyncio.to_thread(sql.query, statement, parameters=parameters)).result_rows
                    except ClickHouseError as error:  # the store may be being started again
                        log.warning("the store cannot be asked: %s", " ".join(str(error).split())[:200])
                        await stores.wait_for_change()

            ended_ids = {rollout_id for (rollout_id,) in await query(ENDED)}
            missing = [task for task in tasks if ids.rollout_id(task.id, task.sample_index) not in ended_ids]
            await publish_all(bus, missing, timeout=patience, on_done=lambda: None)
            while (ended := (await query(NUM_ENDED))[0][0]) < len(tasks):
                if ended > num_ended:
                    limit.reschedule(asyncio.get_running_loop().time() + patience)
                num_ended = ended
                await stores.wait_for_change()  # the store says each second what it has inserted
            actual_versions = await query(VERSIONS)
            ((num_ok, mean, standard_error),) = await query(RESULTS)
            failed = await query(FAILED) if num_ok < len(tasks) else []
    except TimeoutError:
        raise UserError(
            f"evaluation {label} of version {format_versions(versions)}: {num_ended} of {len(tasks)} rollouts ended, "
            f"and none in the last {patience:g} s: `lightningbus status` says what is up; or raise eval.deadline"
        ) from None
    for name, actual in actual_versions:
        if name in versions and list(actual) not in ([], [versions[name]]):
            pinned = versions[name]
            raise UserError(f"evaluation {label} was pinned to version {pinned} of {name!r}, but {actual} answered")
    return Evaluation(
        label=label,
        version=versions[model],
        versions=dict(versions),
        prompt_versions=dict(prompt_versions),
        mean_reward=mean,
        standard_error=standard_error,
        num_problems=len(problems),
        rollouts=len(tasks),
        ok=num_ok,
        failures=describe_failures([*((outcome, error) for outcome, error in failed), *[("ok", "")] * num_ok]),
        seconds=round(time.monotonic() - started, 1),
    )
