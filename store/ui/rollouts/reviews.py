"""Reviews of rollouts: one that a reader sends, and the data sets that reviews add rollouts to. Pure."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from lightningbus.schemas.reviews import RolloutReviewed
from lightningbus.store.ui.rollouts.queries import SOURCE
from lightningbus.store.ui.rollouts.rollout import expand_requests

QueryRow = dict[str, Any]

REVIEWS = """
SELECT reviewer, score, note, dataset, toUnixTimestamp64Milli(reviewed_at) AS reviewed_ms FROM reviews
WHERE run_id = {run_id:String} AND rollout_id = {rollout_id:String} ORDER BY reviewed_at DESC LIMIT 100
"""
DATASETS = """
SELECT dataset, uniqExact(rollout_id) AS rollouts FROM reviews
WHERE run_id = {run_id:String} AND dataset != '' GROUP BY dataset ORDER BY dataset
"""
IN_DATASET = """(SELECT rollout_id, execution_id FROM reviews
    WHERE run_id = {run_id:String} AND dataset = {dataset:String})"""
TASKS = f"""
SELECT {SOURCE} AS id, any(input) AS input, any(labels) AS labels FROM raw_tasks
WHERE run_id = {{run_id:String}} AND rollout_id IN (SELECT rollout_id FROM {IN_DATASET}) GROUP BY id ORDER BY id
"""
"""The tasks of a data set, each once, by their ids in the file."""
PAYLOADS = f"""
SELECT rollout_id, call, request_prefix_refs, request, response FROM raw_call_payloads
WHERE run_id = {{run_id:String}} AND (rollout_id, execution_id) IN {IN_DATASET}
ORDER BY rollout_id, call LIMIT 1 BY rollout_id, call
"""
KINDS = ("tasks", "chats")


def parse_review(body: bytes, now_ns: int) -> RolloutReviewed:
    """Build the event of a review from its JSON; raise ValueError with a sentence."""
    try:
        fields = json.loads(body)
        review = msgspec.convert({**fields, "reviewed_at_ns": now_ns}, RolloutReviewed)
    except (ValueError, TypeError, msgspec.ValidationError) as error:
        raise ValueError(f"this is no review: {error}") from None
    if review.score is not None and not math.isfinite(review.score):
        raise ValueError("score: a finite number")
    if review.score is None and not review.note and not review.dataset:
        raise ValueError("a review has a score, a note or a data set")
    return review


def write_tasks(rows: Sequence[QueryRow]) -> Iterator[str]:
    """Yield a line of a task file for each task."""
    for row in rows:
        line = {"id": row["id"], "input": _parse(row["input"])} | ({"labels": row["labels"]} if row["labels"] else {})
        yield json.dumps(line, ensure_ascii=False)


def write_chats(rows: Sequence[QueryRow]) -> Iterator[str]:
    """Yield a line of a file for ``lightningbus sft`` for each rollout: the chat of its last call, and its tools."""
    for rollout in dict.fromkeys(row["rollout_id"] for row in rows):
        calls = [row for row in rows if row["rollout_id"] == rollout]
        last = calls[-1]
        request, answer = _parse(expand_requests(calls)[last["call"]]), _parse(last["response"])
        if isinstance(request, Mapping) and isinstance(request.get("messages"), list) and isinstance(answer, Mapping):
            tools = {"tools": request["tools"]} if request.get("tools") else {}
            yield json.dumps({"messages": [*request["messages"], answer], **tools}, ensure_ascii=False)


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
