"""Filters and order of the rollout list, from URL parameters to SQL. Pure."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from lightningbus.schemas.text import shorten_line
from lightningbus.store.ui.queries import MODEL_VERSION
from lightningbus.store.ui.rollouts.queries import LABELS, TOOL_ATTEMPTS
from lightningbus.store.ui.rollouts.task_card import describe_task

PAGE_SIZE = 50
INPUT_CHARS = 4000
"""Characters of a task's input that are read for the list."""
MAX_ERROR_CHARS = 200
GIST_CHARS = 160
"""Characters of a question or an answer in the list."""
REWARD_PART = "if({part:String} = '', reward, if(mapContains(rewards, {part:String}), rewards[{part:String}], NULL))"
"""The reward by whose name the parameter ``part`` asks; without one, the rollout's own."""
SORTS = {
    "newest": "ended_at DESC",
    "oldest": "ended_at",
    "slowest": "seconds DESC",
    "longest": "response_tokens DESC",
    "best": f"{REWARD_PART} DESC NULLS LAST",
    "worst": f"{REWARD_PART} NULLS LAST",
}
OF_ATTEMPTS = "execution_id IN (SELECT execution_id FROM"
FILTERS = {
    "mode": "mode = {mode:String}",
    "evaluation": "evaluation = {evaluation:String}",
    "outcome": "outcome = {outcome:String}",
    "name": "positionCaseInsensitive(rollout_id, {name:String}) > 0",
    "part": "mapContains(rewards, {part:String})",
    "reward_from": f"{REWARD_PART} >= {{reward_from:Float64}}",
    "reward_to": f"{REWARD_PART} <= {{reward_to:Float64}}",
    "tokens_from": "response_tokens >= {tokens_from:UInt32}",
    "tokens_to": "response_tokens <= {tokens_to:UInt32}",
    "label": "rollout_id IN (SELECT rollout_id FROM raw_tasks WHERE run_id = {run_id:String} "
    f"AND has({LABELS}, {{label:String}}))",
    "version_from": f"{MODEL_VERSION} >= {{version_from:UInt32}}",
    "version_to": f"if({{model:String}} = '', min_weight_version, {MODEL_VERSION}) <= {{version_to:UInt32}}",
    "role": f"{OF_ATTEMPTS} raw_model_calls WHERE run_id = {{run_id:String}} AND role = {{role:String}})",
    "tool": f"execution_id IN ({TOOL_ATTEMPTS})",
    "step": "rollout_id IN (SELECT rollout_id FROM raw_training_rollouts "
    "WHERE run_id = {run_id:String} AND step = {step:UInt32} AND trained AND {model:String} IN ('', model))",
}
"""Conditions by the name of the parameter; steps and versions belong to the parameter ``model``, or if empty to any
model or the task's.

A rollout's id begins with its task's.
"""
NUMBERS: dict[str, type[float]] = {
    "reward_from": float, "reward_to": float, "version_from": int, "version_to": int, "step": int, "tokens_from": int,
    "tokens_to": int,
}  # fmt: skip

MATCHING_ROLLOUTS = """
SELECT rollout_id, execution_id, count() OVER () AS count, date_diff('microsecond', started_at, ended_at) AS seconds
FROM rollouts WHERE {conditions} ORDER BY {sort}, rollout_id LIMIT {limit:UInt32} OFFSET {offset:UInt32}
"""
ROLLOUTS = """
SELECT rollout_id, execution_id, task_id, mode, evaluation, agent, attempt, outcome, reward, rewards,
    error, num_calls, prompt_tokens, response_tokens,
    min_weight_version, max_weight_version, newest_versions,
    runner, date_diff('microsecond', started_at, ended_at) / 1e6 AS seconds,
    greatest(0., date_diff('microsecond', enqueued_at, started_at) / 1e6) AS queue_seconds,
    toUnixTimestamp64Milli(ended_at) AS ended_ms
FROM raw_attempts WHERE run_id = {run_id:String}
AND rollout_id IN {rollouts:Array(String)} LIMIT 1 BY rollout_id, execution_id
"""
"""The columns of the table, for the matching rollouts only."""

EXCERPTS = f"""
SELECT rollout_id, execution_id, any(first_request) AS request, any(last_answer) AS answer, any(text) AS input FROM
(
    SELECT rollout_id, execution_id, argMin(request_preview, call) AS first_request,
        argMax(response_preview, call) AS last_answer, '' AS text
    FROM raw_model_calls
    WHERE run_id = {{run_id:String}} AND rollout_id IN {{rollouts:Array(String)}} GROUP BY rollout_id, execution_id
    UNION ALL
    SELECT rollout_id, '' AS execution_id, '' AS first_request, '' AS last_answer,
        substring(input, 1, {INPUT_CHARS}) AS text
    FROM raw_tasks
    WHERE run_id = {{run_id:String}} AND rollout_id IN {{rollouts:Array(String)}}
)
GROUP BY rollout_id, execution_id
"""
"""The first request and the last answer of each execution; under an empty execution the task's input, as it begins."""

WORD_SEPARATOR = re.compile(r"[\x00-/:-@\[-`{-\x7f]+")
"""Separators of the text index: all ASCII characters but letters and digits."""


def build_query(params: Mapping[str, str]) -> tuple[str, dict[str, Any]]:
    """Build the query for one page of a run's rollouts and their total count, with its parameters.

    Raises ValueError with a sentence for an invalid filter.
    """
    values: dict[str, Any] = {}
    conditions = ["run_id = {run_id:String}"]
    for name, condition in FILTERS.items():
        if text := params.get(name, "").strip():
            values[name] = _number(name, text) if name in NUMBERS else text
            conditions.append(condition)
    if text := params.get("words", "").strip():
        condition, words = _text_filter(text)
        conditions.append(condition)
        values |= words
    sort = params.get("sort") or "newest"
    if sort not in SORTS:
        raise ValueError(f"sort: {sort!r} is none of {', '.join(SORTS)}")
    page = _number("page", params.get("page") or "1", int)
    if not 1 <= page <= 1_000_000:
        raise ValueError(f"page: {page} is not a page")
    sql = MATCHING_ROLLOUTS.replace("{conditions}", " AND ".join(conditions)).replace("{sort}", SORTS[sort])
    rows = {"limit": PAGE_SIZE, "offset": (int(page) - 1) * PAGE_SIZE}
    return sql, {"part": "", **values, "model": params.get("model", ""), **rows}


def add_excerpts(rows: Sequence[dict[str, Any]], excerpts: Sequence[Mapping[str, Any]]) -> None:
    """Add ``question`` and ``answer`` to rows, and shorten ``error``; ``excerpts`` are rows of `EXCERPTS`."""
    calls = {(excerpt["rollout_id"], excerpt["execution_id"]): excerpt for excerpt in excerpts}
    inputs = {excerpt["rollout_id"]: excerpt["input"] for excerpt in excerpts if not excerpt["execution_id"]}
    for row in rows:
        described = describe_task(inputs.get(row["rollout_id"], ""))
        call = calls.get((row["rollout_id"], row["execution_id"]), {"request": "", "answer": ""})
        row["question"] = _shorten(described["question"] or ", ".join(described["fields"].values()) or call["request"])
        row["answer"] = _shorten(call["answer"])
        row["error"] = shorten_line(row["error"], MAX_ERROR_CHARS)


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= GIST_CHARS else f"{line[:GIST_CHARS]}…"


def _number(name: str, text: str, kind: type[float] | None = None) -> float:
    try:
        value = float(text) if (kind or NUMBERS[name]) is float else int(text)
    except ValueError:
        raise ValueError(f"{name}: {text!r} is not a number") from None
    if NUMBERS.get(name) is int and not 0 <= value < 2**32:
        raise ValueError(f"{name}: {text!r} is not a {name.removesuffix('_from').removesuffix('_to')}")
    return value


def _text_filter(text: str) -> tuple[str, dict[str, Any]]:
    """Build the condition on rollouts with a call whose request or response has all words; the index is case-sensitive.

    Texts are stored as JSON, so the first word of a line is preceded by the n of its \\n.
    """
    words = [word for word in WORD_SEPARATOR.split(text) if word]
    if not words:
        raise ValueError(f"words: {text!r} has no word in it")
    values = {}
    for index, word in enumerate(words):
        cases = dict.fromkeys([word, word.lower(), word.capitalize(), word.upper()])
        values[f"word_{index}"] = [prefix + case for prefix in ("", "n", "t") for case in cases]
    conditions = [
        " AND ".join(f"hasAnyTokens({column}, {{{name}:Array(String)}})" for name in values)
        for column in ("request", "response")
    ]
    calls = f"raw_call_payloads WHERE run_id = {{run_id:String}} AND (({conditions[0]}) OR ({conditions[1]}))"
    return f"{OF_ATTEMPTS} {calls})", values
