"""Rollouts and training batches as they were, made again from what ClickHouse holds."""

import json
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from clickhouse_connect.driver.client import Client

from lightningbus.common.name_suggestions import suggest_name
from lightningbus.learner.batching.preferences import choose_pair
from lightningbus.learner.rollouts.assembler import Rollout, choose_reward, select_usable
from lightningbus.learner.rollouts.groups import RolloutGroup
from lightningbus.learner.rollouts.intermediate_rewards import intermediate_rewards
from lightningbus.learner.selection.task_sets import TaskSets
from lightningbus.learner.settings.algorithm import AirRule
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.run.errors import UserError
from lightningbus.run.run_data.agent_spans import AGENT_SPANS
from lightningbus.run.settings.run_file import validate_settings
from lightningbus.schemas.spans import ModelCall, Span, VersionSpan
from lightningbus.schemas.trajectory.attempt_selection import GRADED_OUTCOMES, Resolution

TRAINED = "SELECT DISTINCT run_id, model FROM training_steps ORDER BY run_id, model"
STEPS = """
SELECT step, version, settings, batch_sha256, metrics FROM training_steps
WHERE run_id = {run_id:String} AND model = {model:String} AND step BETWEEN {first:UInt32} AND {last:UInt32}
ORDER BY step
"""
LAST_STEP = "SELECT max(step) FROM training_steps WHERE run_id = {run_id:String} AND model = {model:String}"
USES = """
SELECT rollout_id, execution_id, task_id FROM training_rollouts
WHERE run_id = {run_id:String} AND model = {model:String} AND step = {step:UInt32} AND batch_index >= 0
ORDER BY batch_index
"""
QUARANTINED = """
SELECT rollout_id, exclusion_reason FROM training_rollouts
WHERE run_id = {run_id:String} AND model = {model:String} AND step = {step:UInt32}
    AND startsWith(exclusion_reason, 'quarantined')
"""
ATTEMPTS = """
SELECT rollout_id, task_id, sample_index, group_size, attempt, execution_id, outcome, resolution, reward, rewards,
    reward_span FROM attempts
WHERE run_id = {run_id:String} AND execution_id IN {executions:Array(String)}
"""
GRADES = """
SELECT execution_id, reward, rewards FROM grades
WHERE run_id = {run_id:String} AND grading = {grading:String} AND execution_id IN {executions:Array(String)}
"""
CALLS = """
SELECT c.execution_id AS execution_id, call, c.role AS role, c.model AS model, c.node AS node,
    p.prompt_ids AS prompt_ids,
       a.response_ids AS response_ids, a.logprobs AS logprobs, a.token_versions AS token_versions,
       c.finish_reason AS finish_reason, c.sampling_params AS sampling_params, p.request AS request,
       a.response AS response,
       toUnixTimestamp64Nano(c.started_at) AS started_at, toUnixTimestamp64Nano(c.ended_at) AS ended_at
FROM model_calls AS c
INNER JOIN (SELECT * FROM prompts WHERE run_id = {run_id:String} AND execution_id IN {executions:Array(String)}) AS p
    USING (execution_id, call)
INNER JOIN (SELECT * FROM completions WHERE run_id = {run_id:String}
AND execution_id IN {executions:Array(String)}) AS a
    USING (execution_id, call)
WHERE c.run_id = {run_id:String} AND c.execution_id IN {executions:Array(String)} ORDER BY execution_id, call
"""
SPANS = f"""
SELECT execution_id, span_id, name, status, attributes, events,
       toUnixTimestamp64Nano(started_at) AS started_at, toUnixTimestamp64Nano(ended_at) AS ended_at
FROM spans WHERE run_id = {{run_id:String}} AND execution_id IN {{executions:Array(String)}}
  AND {AGENT_SPANS}
"""
BEST_ROLLOUTS = """
SELECT execution_id FROM rollouts
WHERE run_id = {run_id:String} AND mode = 'train' AND outcome = 'ok' AND reward >= {least:Float64}
  AND execution_id NOT IN (
    SELECT execution_id FROM quarantined_rollouts WHERE run_id = {run_id:String} AND model = {model:String}
  )
ORDER BY reward DESC, rollout_id LIMIT {most:UInt32} BY task_id
"""

REWARDS = """
SELECT task_id, execution_id, reward FROM rollouts
WHERE run_id = {run_id:String} AND mode = 'train' AND outcome = 'ok' AND reward IS NOT NULL
  AND execution_id NOT IN (
    SELECT execution_id FROM quarantined_rollouts WHERE run_id = {run_id:String} AND model = {model:String}
  )
ORDER BY task_id, rollout_id
"""

QueryRow = dict[str, Any]


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """A training step on record."""

    number: int
    version: int
    """The weight version it made."""
    settings: LearnerSettings
    batch_sha256: str
    metrics: dict[str, float]


class RunHistory:
    """Records of one model's training in one run, read from ClickHouse; calls block."""

    def __init__(self, sql: Client, run: str, model: str, grading: str = "") -> None:
        """Prepare to read; ``grading``: the grading whose rewards count; empty: those that rollouts ended with."""
        self._sql, self._run, self._model, self._grading = sql, run, model, grading

    @classmethod
    def open(cls, sql: Client, run: str | None, model: str | None = None, grading: str = "") -> "RunHistory":
        """Open the history of a model in a run; None: the only one there is. Raise `UserError` if it is ambiguous.

        ``grading`` as for `RunHistory`.
        """
        rows = sql.query(TRAINED).result_rows
        name = _choose("run", run, list(dict.fromkeys(row[0] for row in rows)), "runs with training steps")
        models = [row[1] for row in rows if row[0] == name]
        return cls(sql, name, _choose("model", model, models, f"models that run {name!r} trained"), grading)

    def steps(self, first: int, last: int) -> list[RecordedStep]:
        """Load training steps in order; raise `UserError` if one of them is not on record."""
        rows = self._rows(STEPS, first=first, last=last)
        missing = sorted(set(range(first, last + 1)) - {row["step"] for row in rows})
        if missing:
            raise UserError(f"step {missing[0]} of run {self._run!r} is not on record")
        return [
            RecordedStep(
                number=row["step"],
                version=row["version"],
                settings=validate_settings(
                    LearnerSettings, json.loads(row["settings"] or "{}"), f"settings of step {row['step']}"
                ),
                batch_sha256=row["batch_sha256"],
                metrics=row["metrics"],
            )
            for row in rows
        ]

    def groups(self, step: RecordedStep) -> list[RolloutGroup]:
        """Load the groups a step was made of, in their order; raise `UserError` when rollouts are gone."""
        uses = self._rows(USES, step=step.number)
        rollouts = {
            rollout.execution_id: rollout
            for rollout in self.rollouts([use["execution_id"] for use in uses], step.settings)
        }
        gone = [use["rollout_id"] for use in uses if use["execution_id"] not in rollouts]
        if gone:
            raise UserError(f"step {step.number}: {len(gone)} rollouts are not on record any more, e.g. {gone[0]}")
        groups = []
        for task, members in groupby(uses, key=lambda use: str(use["task_id"])):
            by_id = {rollout.id: rollout for rollout in (rollouts[use["execution_id"]] for use in members)}
            groups.append(RolloutGroup(task, len(by_id), 0.0, by_id))
        return groups

    def quarantined(self, step: RecordedStep) -> dict[str, str]:
        """Map rollouts that a step excluded because of the auditor's verdicts to its reasons."""
        return {row["rollout_id"]: row["exclusion_reason"] for row in self._rows(QUARANTINED, step=step.number)}

    def best_rollouts(self, per_task: int, min_reward: float) -> list[Rollout]:
        """Load the best rollouts of each training task with at least a reward, best first; none that is quarantined.

        Only calls of the model are kept.
        """
        rows = self._rows(BEST_ROLLOUTS, most=per_task, least=min_reward)
        return self._rollouts_of_model([row["execution_id"] for row in rows])

    def paired_rollouts(self) -> tuple[list[Rollout], int]:
        """Load the best and the worst rollout of each training task, none that is quarantined, as `best_rollouts`.

        Return them with the number of tasks without two rewards that differ.
        """
        tasks = groupby(self._rows(REWARDS), key=lambda row: str(row["task_id"]))
        pairs = [choose_pair(list(rows), lambda row: float(row["reward"])) for _, rows in tasks]
        executions = [row["execution_id"] for pair in pairs if pair is not None for row in pair]
        return self._rollouts_of_model(executions), pairs.count(None)

    def query_rollouts(self, query: str) -> list[Rollout]:
        """Load the rollouts that a query names by its column ``execution_id``, in its order, as `best_rollouts`.

        Raise `UserError` for a query without that column.
        """
        result = self._sql.query(query)
        if "execution_id" not in result.column_names:
            raise UserError("--query: select the column execution_id of `rollouts`, which names what is taken")
        place = result.column_names.index("execution_id")
        return self._rollouts_of_model(list(dict.fromkeys(str(row[place]) for row in result.result_rows)))

    def last_settings(self) -> LearnerSettings:
        """Load the settings of the newest training step."""
        ((number,),) = self._sql.query(LAST_STEP, parameters={"run_id": self._run, "model": self._model}).result_rows
        return self.steps(number, number)[0].settings

    def _rollouts_of_model(self, executions: Sequence[str]) -> list[Rollout]:
        rollouts = {rollout.execution_id: rollout for rollout in self.rollouts(executions, None)}
        rollouts_of_model = [rollouts[execution] for execution in executions if execution in rollouts]
        return [
            replace(rollout, calls=tuple(call for call in rollout.calls if call.model == self._model))
            for rollout in rollouts_of_model
        ]

    def rollouts(self, executions: Sequence[str], settings: LearnerSettings | None) -> Iterator[Rollout]:
        """Load whole attempts; their spans earn rewards by the rules of ``settings``."""
        sets = TaskSets(settings) if settings is not None else None
        spans: dict[str, list[Span]] = {}
        for row in self._rows(CALLS, executions=list(executions)):
            spans.setdefault(row["execution_id"], []).append(_call_span(row))
        for row in self._rows(SPANS, executions=list(executions)):
            spans.setdefault(row["execution_id"], []).append(_span(row))
        grades = self._load_grades(executions)
        for row in self._rows(ATTEMPTS, executions=list(executions)):
            if self._grading:
                row = regrade_row(row, grades.get(row["execution_id"]), self._grading)
            rules, reward = sets.find_rules(row["task_id"]) if sets is not None else ((), "")
            yield _rollout(row, spans.get(row["execution_id"], []), rules, reward)

    def _load_grades(self, executions: Sequence[str]) -> dict[str, QueryRow]:
        if not self._grading:
            return {}
        rows = self._rows(GRADES, executions=list(executions), grading=self._grading)
        return {row["execution_id"]: row for row in rows}

    def _rows(self, sql: str, **parameters: Any) -> list[QueryRow]:
        return list(
            self._sql.query(sql, parameters={"run_id": self._run, "model": self._model, **parameters}).named_results()
        )


def _choose(option: str, name: str | None, names: Sequence[str], what: str) -> str:
    if name is None and len(names) == 1:
        return names[0]
    if name is not None and name in names:
        return name
    if name is not None and (hint := suggest_name(name, names)):
        raise UserError(f"--{option}: {name!r} is none of the {what}; {hint}")
    raise UserError(f"--{option}: name one of the {what}: {', '.join(names) or 'there is none yet'}")


def regrade_row(row: QueryRow, grade: QueryRow | None, grading: str) -> QueryRow:
    """Return an attempt with the rewards of a grading; raise `UserError` if it deserves a grade and has none. Pure."""
    if row["outcome"] not in GRADED_OUTCOMES:
        return row
    if grade is None:
        raise UserError(
            f"--grading: rollout {row['rollout_id']} has no grade of {grading!r}: `lightningbus regrade` gives it one"
        )
    rewards = {**row["rewards"], **grade["rewards"]}
    outcome = "ok" if grade["reward"] is not None else "grading_failed"
    return {**row, "outcome": outcome, "reward": grade["reward"], "rewards": rewards}


def _rollout(row: QueryRow, spans: Sequence[Span], rules: Sequence[AirRule], reward: str) -> Rollout:
    calls = sorted((span.call for span in spans if span.call is not None), key=lambda call: call.index)
    return Rollout(
        id=row["rollout_id"],
        task_id=row["task_id"],
        sample_index=row["sample_index"],
        group_size=row["group_size"],
        attempt=row["attempt"],
        execution_id=row["execution_id"],
        outcome=row["outcome"],
        resolution=Resolution[row["resolution"].upper()],
        reward=choose_reward(row["reward"], row["rewards"], reward),
        calls=tuple(calls),
        rewards=intermediate_rewards(spans, row["reward_span"], rules),
        first_sequence=0,
        last_sequence=0,
        named_rewards=select_usable(row["rewards"]),
    )


def _span(row: QueryRow) -> Span:
    return Span(
        trace_id="",
        span_id=row["span_id"],
        name=row["name"],
        start_ns=row["started_at"],
        end_ns=row["ended_at"],
        status=row["status"],
        attributes=row["attributes"],
        events=tuple(json.loads(row["events"] or "[]")),
    )


def _call_span(row: QueryRow) -> Span:
    call = ModelCall(
        index=row["call"],
        model=row["model"],
        role=row["role"],
        node=row["node"],
        prompt_ids=array("I", row["prompt_ids"]).tobytes(),
        response_ids=array("I", row["response_ids"]).tobytes(),
        logprobs=array("f", row["logprobs"]).tobytes(),
        weight_versions=tuple(_runs(row["token_versions"])),
        finish_reason=row["finish_reason"],
        sampling_params=json.loads(row["sampling_params"]),
        request=row["request"],
        response=row["response"],
    )
    return Span(trace_id="", span_id="", name="chat", start_ns=row["started_at"], end_ns=row["ended_at"], call=call)


def _runs(versions: Sequence[int]) -> Iterator[VersionSpan]:
    start = 0
    for version, tokens in groupby(versions):
        end = start + len(list(tokens))
        yield VersionSpan(version=version, start=start, end=end)
        start = end
