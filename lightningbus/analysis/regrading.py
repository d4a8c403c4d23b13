"""Grades stored rollouts again, without a model call: new events, beside the rewards that rollouts ended with."""

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from clickhouse_connect.driver.client import Client

from lightningbus.bus.client import Bus
from lightningbus.bus.errors import BusError
from lightningbus.bus.jetstream.publish_batch import OutgoingMessage, encode_event
from lightningbus.graders.grade import Grade
from lightningbus.graders.grading import Grading
from lightningbus.graders.records import build_event
from lightningbus.graders.submission import Submission, parse_json, read_messages
from lightningbus.run.errors import UserError
from lightningbus.schemas import ids, subjects
from lightningbus.schemas.grading import LIVE

ROLLOUTS = """
SELECT task_id, execution_id FROM rollouts
WHERE run_id = {run_id:String} AND outcome IN ('ok', 'grading_failed') AND ({mode:String} = '' OR mode = {mode:String})
  AND execution_id NOT IN (
    SELECT execution_id FROM grades WHERE run_id = {run_id:String} AND grading = {grading:String} AND reward IS NOT NULL
  )
ORDER BY task_id, sample_index
"""
OTHER_GRADERS = """
SELECT count() FROM grades
WHERE run_id = {run_id:String} AND grading = {grading:String} AND graders_sha256 != {graders_sha256:String}
"""
SUBMISSIONS = """
SELECT r.task_id AS task_id, r.rollout_id AS rollout_id, r.execution_id AS execution_id,
    r.sample_index AS sample_index, r.group_size AS group_size, r.result AS result, t.input AS input,
    t.labels AS labels,
    multiIf(mapContains(r.rewards, 'agent'), r.rewards['agent'],
        r.execution_id IN (SELECT execution_id FROM grades WHERE run_id = {run_id:String} AND grading = 'live'), NULL,
        r.reward) AS own_reward
FROM (
    SELECT * FROM rollouts WHERE run_id = {run_id:String} AND execution_id IN {executions:Array(String)}
) AS r
LEFT ANY JOIN (SELECT rollout_id, input, labels FROM tasks WHERE run_id = {run_id:String}) AS t USING (rollout_id)
ORDER BY r.task_id, r.sample_index
"""
LAST_CALLS = """
SELECT p.execution_id AS execution_id, p.request AS request, c.response AS response
FROM (
    SELECT execution_id, call, request FROM prompts
    WHERE run_id = {run_id:String} AND execution_id IN {executions:Array(String)}
    ORDER BY call DESC LIMIT 1 BY execution_id
) AS p
INNER JOIN (
    SELECT execution_id, call, response FROM completions
    WHERE run_id = {run_id:String} AND execution_id IN {executions:Array(String)}
) AS c USING (execution_id, call)
"""
NUM_STORED = """
SELECT count() FROM grades WHERE run_id = {run_id:String} AND grading = {grading:String}
  AND graders_sha256 = {graders_sha256:String} AND graded_at >= fromUnixTimestamp64Nano({since:Int64})
"""
CHUNK = 250
"""Rollouts that are read and graded together; a task's are never split."""
STORED_SECONDS = 120.0
"""Longest wait for the store, without a new row, after the last grade is published."""
POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class RegradedRun:
    """Counts of a grading."""

    num_graded: int
    num_failed: int
    num_judge_calls: int
    cost: float
    example: str = ""
    """A rollout that could not be graded, and why."""


class Regrading:
    """One grading of a run's stored rollouts; a second start goes on with those that have no reward yet."""

    def __init__(
        self, bus: Bus, client: Client, grading: Grading, graders_sha256: str, *, run: str, name: str, mode: str = ""
    ) -> None:
        """Prepare the grading ``name``; ``mode``: train or eval; empty: both."""
        self._bus, self._client, self._grading, self._sha256 = bus, client, grading, graders_sha256
        self._parameters = {"run_id": run, "grading": name, "graders_sha256": graders_sha256, "mode": mode}
        self._run, self._name = run, name

    async def run(self, limit: int | None, on_graded: Callable[[int, int], None]) -> RegradedRun:
        """Grade the rollouts; ``on_graded`` is told how many of how many are graded.

        Raises `UserError` where the name is another grading's, and `GraderError` or `BusError`.
        """
        await asyncio.to_thread(self._check_name)
        rows = (await asyncio.to_thread(self._rows, ROLLOUTS))[:limit]
        grades: list[tuple[str, Grade]] = []
        since_ns = 0
        for executions in chunk_by_task([(row["task_id"], row["execution_id"]) for row in rows], CHUNK):
            submissions = await asyncio.to_thread(self._load, executions)
            groups = [list(group) for _, group in groupby(submissions, key=lambda each: each.task_id)]
            graded = await asyncio.gather(*map(self._grading.grade, groups))
            pairs = list(zip(submissions, (grade for part in graded for grade in part), strict=True))
            await self._publish(pairs)
            grades += [(submission.rollout_id, grade) for submission, grade in pairs]
            since_ns = since_ns or min(grade.ended_ns for _, grade in pairs)
            on_graded(len(grades), len(rows))
        await self._wait_until_stored(len(grades), since_ns)
        failed = [(rollout, grade.error) for rollout, grade in grades if grade.reward is None]
        return RegradedRun(
            num_graded=len(grades) - len(failed),
            num_failed=len(failed),
            num_judge_calls=sum(not call.is_cached for _, grade in grades for call in grade.calls),
            cost=sum(grade.cost for _, grade in grades),
            example=": ".join(failed[0]) if failed else "",
        )

    def _check_name(self) -> None:
        if self._name == LIVE:
            raise UserError(f"--name: {LIVE!r} is the grading that rollouts ended with; choose another")
        if self._rows(OTHER_GRADERS)[0]["count()"]:
            raise UserError(f"--name: {self._name!r} is a grading by other graders, which stays; choose another name")

    def _load(self, executions: Sequence[str]) -> list[Submission]:
        rows = self._rows(SUBMISSIONS, executions=executions)
        calls = self._rows(LAST_CALLS, executions=executions) if self._grading.needs_conversations else []
        messages = {row["execution_id"]: read_messages(row["request"], row["response"]) for row in calls}
        return [
            Submission(
                run_id=self._run,
                task_id=row["task_id"],
                rollout_id=row["rollout_id"],
                execution_id=row["execution_id"],
                sample_index=row["sample_index"],
                group_size=row["group_size"],
                input=json.loads(row["input"] or "null"),
                result=parse_json(row["result"]),
                messages=messages.get(row["execution_id"], ()),
                labels=row["labels"],
                own_reward=row["own_reward"],
            )
            for row in rows
        ]

    async def _publish(self, pairs: Sequence[tuple[Submission, Grade]]) -> None:
        for result in await self._bus.publish_batch([self._encode(*pair) for pair in pairs]):
            if isinstance(result, BusError):
                raise result

    def _encode(self, submission: Submission, grade: Grade) -> OutgoingMessage:
        """Encode a grade's event; a failed one may follow another, and is an event of its own."""
        event = build_event(submission, grade, self._name, self._sha256)
        msg_id = ids.graded_msg_id(submission.execution_id, self._name, self._sha256)
        msg_id += f":{grade.ended_ns}" if grade.reward is None else ""
        traceparent = ids.task_traceparent(submission.rollout_id)
        return encode_event(subjects.ROLLOUT_GRADED, event, msg_id, traceparent)

    async def _wait_until_stored(self, num_grades: int, since_ns: int) -> None:
        """Wait until the store has written the grades; raise `UserError` if it does not."""
        now, num_stored = asyncio.get_running_loop().time, -1
        while True:
            count = (await asyncio.to_thread(self._rows, NUM_STORED, since=since_ns))[0]["count()"]
            if count >= num_grades:
                return
            if count > num_stored:
                num_stored, gives_up_at = count, now() + STORED_SECONDS
            elif now() > gives_up_at:
                raise UserError(
                    f"the store has written {count} of {num_grades} grades, and none for {STORED_SECONDS:g} s"
                )
            await asyncio.sleep(POLL_SECONDS)

    def _rows(self, sql: str, **parameters: Any) -> list[dict[str, Any]]:
        return list(self._client.query(sql, parameters={**self._parameters, **parameters}).named_results())


def chunk_by_task(executions: Sequence[tuple[str, str]], size: int) -> Iterator[list[str]]:
    """Cut (task, execution) pairs, ordered by task, into chunks of whole tasks with at least ``size``. Pure."""
    chunk: list[str] = []
    for _, group in groupby(executions, key=lambda pair: pair[0]):
        chunk += [execution for _, execution in group]
        if len(chunk) >= size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
