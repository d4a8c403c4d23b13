"""Rollouts of an optimisation, read from ClickHouse. Blocks."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from clickhouse_connect.driver.client import Client

from lightningbus.optimize.feedback import CallText, RolloutResult
from lightningbus.optimize.plan.candidates import ROUND_PATTERN
from lightningbus.run.run_data.agent_spans import AGENT_SPANS

MAX_SPANS, MAX_SPAN_CHARS, MAX_CALL_CHARS = 200, 4000, 400_000
"""Limits for one rollout: spans that are read, characters of a span attribute, characters of a call's request."""
PUBLISHED = """
SELECT rollout_id, evaluation FROM tasks WHERE run_id = {run_id:String} AND match(evaluation, {rounds:String})
UNION DISTINCT
SELECT rollout_id, evaluation FROM rollouts WHERE run_id = {run_id:String} AND match(evaluation, {rounds:String})
"""
ROLLOUTS = """
SELECT rollout_id, execution_id, outcome, reward, rewards, error, result FROM rollouts
WHERE run_id = {run_id:String} AND rollout_id IN {ids:Array(String)}
"""
SPANS = f"""
SELECT rollout_id, execution_id, name, status, substring(status_message, 1, {{span_chars:UInt32}}) AS status_message,
    mapApply((key, value) -> (key, substring(value, 1, {{span_chars:UInt32}})), attributes) AS attributes, events
FROM spans
WHERE run_id = {{run_id:String}} AND rollout_id IN {{ids:Array(String)}} AND execution_id != ''
    AND {AGENT_SPANS}
ORDER BY rollout_id, started_at, span_id LIMIT {{spans:UInt32}} BY rollout_id, execution_id
"""
CALLS = """
SELECT c.rollout_id AS rollout_id, c.execution_id AS execution_id, c.role AS role,
    c.prompt_versions AS prompt_versions, substring(p.request, 1, {call_chars:UInt32}) AS request,
    substring(a.response, 1, {call_chars:UInt32}) AS response
FROM model_calls AS c INNER JOIN prompts AS p USING (run_id, rollout_id, execution_id, call)
INNER JOIN completions AS a USING (run_id, rollout_id, execution_id, call)
WHERE run_id = {run_id:String} AND rollout_id IN {ids:Array(String)}
ORDER BY rollout_id, call
"""

PROMPTS_USED = """
SELECT count(), groupUniqArrayArray(mapKeys(prompt_versions)) FROM model_calls
WHERE run_id = {run_id:String} AND rollout_id IN {ids:Array(String)}
"""


def read_published(client: Client, run: str) -> dict[str, str]:
    """Read the evaluation of each rollout that the run's rounds have published, by rollout id."""
    parameters = {"run_id": run, "rounds": ROUND_PATTERN}
    return dict(map(tuple, client.query(PUBLISHED, parameters=parameters).result_rows))


def read_prompts_used(client: Client, run: str, ids: Sequence[str]) -> tuple[int, set[str]]:
    """Count the model calls of these rollouts, and collect the names of the prompts in them."""
    ((count, names),) = client.query(PROMPTS_USED, parameters={"run_id": run, "ids": list(ids)}).result_rows
    return int(count), set(names)


def read_results(client: Client, run: str, inputs: Mapping[str, Any], with_traces: bool) -> dict[str, RolloutResult]:
    """Read the results by rollout id. ``inputs``: input by rollout id; ``with_traces``: with calls and spans."""
    parameters = {
        "run_id": run,
        "ids": list(inputs),
        "spans": MAX_SPANS,
        "span_chars": MAX_SPAN_CHARS,
        "call_chars": MAX_CALL_CHARS,
    }
    rows = list(client.query(ROLLOUTS, parameters=parameters).named_results())
    spans: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    calls: dict[tuple[str, str], list[CallText]] = defaultdict(list)
    if with_traces:
        for row in client.query(SPANS, parameters=parameters).named_results():
            spans[row["rollout_id"], row["execution_id"]].append(row)
        for row in client.query(CALLS, parameters=parameters).named_results():
            call = CallText(row["role"], row["request"], row["response"], row["prompt_versions"])
            calls[row["rollout_id"], row["execution_id"]].append(call)
    return {row["rollout_id"]: _result(row, inputs, spans, calls) for row in rows}


def _result(
    row: Mapping[str, Any],
    inputs: Mapping[str, Any],
    spans: Mapping[tuple[str, str], list[Mapping[str, Any]]],
    calls: Mapping[tuple[str, str], list[CallText]],
) -> RolloutResult:
    key = row["rollout_id"], row["execution_id"]
    return RolloutResult(
        rollout_id=row["rollout_id"],
        input=inputs[row["rollout_id"]],
        outcome=row["outcome"],
        reward=row["reward"],
        error=row["error"],
        result=_plain(row["result"]),
        rewards=row["rewards"],
        calls=tuple(calls.get(key, ())),
        spans=tuple(spans.get(key, ())),
    )


def _plain(result: str) -> str:
    """Return a JSON string without its quotes; any other result as it is."""
    try:
        value = json.loads(result)
    except ValueError:
        return result
    return value if isinstance(value, str) else result
