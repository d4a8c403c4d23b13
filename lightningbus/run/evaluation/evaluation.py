"""Held-out reward of one weight version, measured through the same bus, runners and inference nodes."""

import logging
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from clickhouse_connect.driver.client import Client
from pydantic import BaseModel, ConfigDict, Field

from lightningbus.bus.client import Bus
from lightningbus.common.name_suggestions import suggest_near_name
from lightningbus.run.errors import UserError
from lightningbus.run.evaluation.batch import RolloutBatch
from lightningbus.run.evaluation.failures import describe_failures
from lightningbus.run.evaluation.pass_at_k import PassAtK, estimate_pass_at_k
from lightningbus.run.evaluation.request import SAMPLINGS, RolloutRequest, format_versions
from lightningbus.run.evaluation.retrying_store import RetryingStore
from lightningbus.store.reports.interval import Interval, estimate_interval, format_mean
from lightningbus.store.reports.pass_note import select_pass_note
from lightningbus.tasks.task_loading import TaskInput

log = logging.getLogger(__name__)

# By task first: the answers to one task are not independent of each other.
RESULTS = f"""
SELECT sum(num_ok), ifNull(avg(reward), 0.), if(count(reward) > 1, stddevSamp(reward) / sqrt(count(reward)), NULL),
    groupArray(num_graded), groupArray(num_passed), sum(num_named), min(low) AS lowest, max(high) AS highest,
    min(is_binary), {select_pass_note("{pass_reward:Float64}")}, groupUniqArrayArray(names),
    sum(num_without_call)
FROM (
    SELECT countIf(outcome = 'ok') AS num_ok, countIf(outcome = 'ok' AND has_name) AS num_named,
        countIf(outcome = 'ok' AND num_calls = 0) AS num_without_call,
        countIf(outcome NOT IN ('grading_failed', 'reward_timeout')) AS num_graded,
        countIf(outcome = 'ok' AND own_reward >= {{pass_reward:Float64}}) AS num_passed,
        countIf(outcome = 'ok' AND own_reward NOT IN (0, 1)) = 0 AS is_binary,
        minOrNullIf(own_reward, outcome = 'ok') AS low, maxOrNullIf(own_reward, outcome = 'ok') AS high,
        sumIf(own_reward, outcome = 'ok') / nullIf(num_graded, 0) AS reward,
        groupUniqArrayArray(100)(mapKeys(rewards)) AS names
    FROM
    (
        SELECT task_id, outcome, num_calls, rewards,
            {{reward:String}} = '' OR mapContains(rewards, {{reward:String}}) AS has_name,
            ifNull(if({{reward:String}} = '', reward, rewards[{{reward:String}}]), 0) AS own_reward
        FROM rollouts WHERE run_id = {{run_id:String}} AND endsWith(task_id, {{suffix:String}})
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

    label: str = Field(description="how the tasks were answered: greedy or sampled; of a suite NAME-greedy")
    version: int = Field(
        description="weight version of the model that agents call by name; 0 where an endpoint answers"
    )
    versions: dict[str, int] = Field(default={}, description="weight version of each model that was pinned")
    prompt_versions: dict[str, int] = Field(default={}, description="version of each prompt that was pinned")
    reward: str = Field(
        default="", description="name of the reward that counts; empty: the one that the agent returned"
    )
    mean_reward: float = Field(
        description="mean reward of all rollouts; a failed one counts as 0, and one without a grade not at all"
    )
    standard_error: float | None = Field(description="of that mean, over tasks; none for a single task")
    interval: Interval | None = Field(
        default=None,
        description="95 % confidence interval of that mean: the Wilson score interval where all rewards are 0 or 1, "
        "else 1.96 standard errors to each side; none where all tasks have the same mean",
    )
    pass_at: dict[int, PassAtK] = Field(
        default={},
        description="pass@k by k: 1, 2, 4, ..., at most the samples of a task; a failed answer has not passed",
    )
    pass_note: str = Field(
        default="", description="why `pass_reward` may not fit the rewards, so that pass@k says little; empty: it fits"
    )
    num_tasks: int = Field(description="held-out tasks")
    rollouts: int = Field(description="answers: tasks times samples")
    ok: int = Field(description="answers whose agent ended well")
    num_recorded: int = Field(
        default=0, description="answers that were on record before, under the same label, and were not given again"
    )
    num_without_call: int = Field(default=0, description="answers that ended well though the agent called no model")
    failures: str = Field(default="", description="how many rollouts failed, and the most frequent error; empty: none")
    seconds: float = Field(description="how long it took; for the part after a resume, if there was one")

    @property
    def key(self) -> tuple[object, ...]:
        """Identity of the evaluation: its label, and the versions of weights and prompts."""
        return self.label, self.version, sorted(self.versions.items()), sorted(self.prompt_versions.items())

    def describe_recorded(self) -> str:
        """Describe rollouts that were not answered again, and how to get new ones; empty: there are none."""
        if not self.num_recorded:
            return ""
        num = "all" if self.num_recorded == self.rollouts else f"{self.num_recorded} of"
        return f"{num} {self.rollouts} rollouts were on record already: another label answers all tasks anew"

    def describe_without_call(self) -> str:
        """Describe rollouts whose agent called no model, and their likely cause; empty: there are none."""
        if not self.num_without_call:
            return ""
        return (
            f"{self.num_without_call} of {self.rollouts} rollouts called no model: if the agent asks one each time, "
            "a cache of its client gives it old answers, which may be of other weights; turn the cache off"
        )

    def format_mean(self) -> str:
        """Format the mean reward with its 95 % interval."""
        return format_mean(self.mean_reward, self.standard_error, self.interval)


def describe_missing_reward(label: str, reward: str, num_ok: int, names: Sequence[str]) -> str:
    """Describe an evaluation in which no rollout has the named reward that counts; each counts as 0 then. Pure.

    An agent may give a name in some answers alone. Raises `UserError` where the name is likely misspelt: ``names``,
    those that the rollouts have, hold a similar one.
    """
    what = f"evaluation {label}: none of {num_ok} rollouts has a reward with the name {reward!r}"
    if near := suggest_near_name(reward, names):
        raise UserError(f"{what}; {near}")
    others = f"they have {', '.join(sorted(names))}" if names else "they have none by name"
    return f"{what}, so each counts as 0; {others}"


def describe_pass_notes(evaluations: Iterable[Evaluation], setting: str = "") -> list[str]:
    """Describe, by label, a threshold of pass@k that fits the rewards of no version, and the setting to change. Pure.

    Only where tasks have several answers: pass@k is not shown for a single one. ``setting``: its name; empty: as in a
    run file.
    """
    by_label: dict[str, list[Evaluation]] = defaultdict(list)
    for each in evaluations:
        if max(each.pass_at, default=1) > 1:
            by_label[each.label].append(each)
    sentences = []
    for label, group in by_label.items():
        if all(each.pass_note for each in group):
            where = setting or ("eval.pass_reward" if label in SAMPLINGS else "eval.suites.pass_reward")
            sentences.append(f"pass@k of {label}: {group[-1].pass_note}: say by {where} which of them is a success")
    return sentences


def format_label(versions: Mapping[str, int]) -> str:
    """Put versions in words: ``version 3``, or with several models ``versions checker 7, writer 3``."""
    if not versions:
        return "no version"
    if len(versions) == 1:
        return f"version {next(iter(versions.values()))}"
    return "versions " + ", ".join(f"{model} {versions[model]}" for model in sorted(versions))


async def evaluate(bus: Bus, sql: Client, request: RolloutRequest, tasks: Sequence[TaskInput]) -> Evaluation:
    """Answer tasks under the versions that a request pins, its ``model``'s among them, and read the rewards.

    Results that are there already count: only what is missing is published. A rollout that times out counts as 0, like
    any other that fails. Raises `UserError` when none ends for the request's `patience`, or when a token came from
    another version.
    """
    started, label, versions = time.monotonic(), request.evaluation, request.weight_versions
    request = request.with_versions_in_ids()
    batch = RolloutBatch(request, tasks)
    parameters = {
        "run_id": request.run,
        "suffix": request.id_suffix,
        "reward": request.reward,
        "pass_reward": request.pass_reward,
    }

    def read(client: Client) -> list[Sequence[Sequence[Any]]]:
        return [client.query(sql, parameters=parameters).result_rows for sql in (VERSIONS, RESULTS, FAILED)]

    async with bus.fleet("store") as stores:
        actual_versions, (figures,), failed = await batch.run(
            bus,
            RetryingStore(sql, stores),
            read,
            what=f"evaluation {label} of version {format_versions(versions)}" if versions else f"evaluation {label}",
            advice="`lightningbus status` says what is up; or raise eval.deadline",
        )
    (
        num_ok,
        mean,
        standard_error,
        num_graded,
        num_passed,
        num_named,
        _,
        _,
        is_binary,
        pass_note,
        names,
        num_without_call,
    ) = figures
    for name, actual in actual_versions:
        if name in versions and list(actual) not in ([], [versions[name]]):
            pinned = versions[name]
            raise UserError(f"evaluation {label} was pinned to version {pinned} of {name!r}, but {actual} answered")
    if num_ok and not num_named:
        log.warning("%s", describe_missing_reward(label, request.reward, num_ok, names))
    return Evaluation(
        label=label,
        version=versions.get(request.model, 0),
        versions=dict(versions),
        prompt_versions=dict(request.prompt_versions),
        reward=request.reward,
        mean_reward=mean,
        standard_error=standard_error,
        interval=estimate_interval(
            mean, standard_error, sum(map(bool, num_graded)), sum(num_graded), is_success_rate=bool(is_binary)
        ),
        pass_at=estimate_pass_at_k(num_graded, num_passed),
        pass_note=pass_note,
        num_tasks=len(tasks),
        rollouts=len(batch.tasks),
        ok=num_ok,
        num_recorded=batch.num_recorded,
        num_without_call=num_without_call,
        failures=describe_failures([*((outcome, error) for outcome, error in failed), *[("ok", "")] * num_ok]),
        seconds=round(time.monotonic() - started, 1),
    )
