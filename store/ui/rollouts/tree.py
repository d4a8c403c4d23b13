"""Builds one tree from all spans of a rollout, ours and the agent's. Pure; the stored spans do not change.

The parent of a span is the one it declares, if that is a span of this rollout, else the attempt. A model call that the
gateway recorded is the same call as the span of an instrumentation, so it becomes a child of that span:

1. of the span in the request's ``traceparent``,
2. else of the shortest model span that has the id of its response,
3. else of the innermost span that was open when the call began; if two siblings were open, of their parent.

A span that links to a model call, as Agent Lightning's links do, becomes a child of that call.
"""

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from lightningbus.schemas.semconv.call_attribution import CallIndex, RecordedCall, find_response_keys
from lightningbus.schemas.semconv.span_kinds import (
    agl_links,
    entity_name,
    kind_of,
    payload_keys,
    summarize,
)

QueryRow = dict[str, Any]

OWN_SCOPE_PREFIX = "lightningbus."
"""Prefix of the scopes of our own spans."""


def build_tree(
    spans: Sequence[QueryRow], calls: Iterable[QueryRow], contents: Iterable[QueryRow], root: str
) -> list[QueryRow]:
    """Arrange spans as a tree and describe them; ``calls`` and ``contents`` are the model calls, ``root`` the attempt.

    To a span are added: ``parent``, which is empty or a span of these; ``placed``, the reason for a parent that it does
    not declare; ``what``, its kind; ``title``, a tool's or agent's own name; ``gist``, a summary in one line;
    ``payload_keys``, the attributes to read first; and ``call``, the model call that it is, answers or judges.
    """
    known = {row["span_id"]: row for row in spans}
    responses = {row["call"]: row.get("response", "") for row in contents}
    numbers = [(row["call"], known[row["span_id"]]) for row in calls if row["span_id"] in known]
    call_index = CallIndex(
        [
            RecordedCall(span["span_id"], span["attributes"], span["end_ms"], responses.get(call, ""))
            for call, span in numbers
        ]
    )
    call_of_span = {span["span_id"]: call for call, span in numbers}
    kinds = {row["span_id"]: _classify(row) for row in spans}
    placements = _place_spans(spans, kinds, call_index, root)
    nodes = []
    for row in spans:
        name, span_attributes, kind = row["name"], row["attributes"], kinds[row["span_id"]]
        parent, placement_reason = placements[row["span_id"]]
        subject = _find_subject_call(row, kind, call_index)
        nodes.append(
            {
                **row,
                "parent": parent,
                "placed": placement_reason,
                "what": kind,
                "title": entity_name(name, span_attributes),
                "gist": summarize(name, span_attributes),
                "payload_keys": payload_keys(span_attributes),
                "call": call_of_span.get(row["span_id"], None if subject is None else numbers[subject][0]),
            }
        )
    return nodes


def _place_spans(
    spans: Sequence[QueryRow], kinds: Mapping[str, str], call_index: CallIndex, root: str
) -> dict[str, tuple[str, str]]:
    """Choose each span's parent, with the reason if the span did not declare that parent."""
    known = {row["span_id"]: row for row in spans}
    top = root if root in known else ""
    calls = {call.span_id for call in call_index.calls}
    placements = {row["span_id"]: _declared_parent(row, known, calls, top, root) for row in spans}
    instrumented = _match_instrumented_spans(spans, kinds, call_index.calls)
    matched_span_ids = set(instrumented.values())
    children: dict[str, list[QueryRow]] = defaultdict(list)
    for row in spans:
        if _is_agent_span(row) and row["span_id"] not in matched_span_ids:
            children[placements[row["span_id"]][0]].append(row)
    for call in call_index.calls:
        if placements[call.span_id][0] != top:
            continue
        if call.span_id in instrumented:
            placements[call.span_id] = (instrumented[call.span_id], "it has the id of this answer")
        elif (matched := _find_open_span(known[call.span_id]["start_ms"], children, top)) != top:
            placements[call.span_id] = (matched, "it was open when the call began")
    for row in spans:
        subject = call_index.find_referenced(row["attributes"]) if any(agl_links(row["attributes"])) else None
        if subject is not None:
            placements[row["span_id"]] = (call_index.calls[subject].span_id, "its link names this call")
    return _break_cycles(placements, top)


def _declared_parent(
    row: QueryRow, known: Container[str], calls: Container[str], top: str, root: str
) -> tuple[str, str]:
    """Return the declared parent of a span, else the attempt."""
    parent, name = row["parent_span_id"], row["span_id"]
    if parent in known and parent != name:
        return parent, ""
    if name == top or (not _is_agent_span(row) and name not in calls):
        return "", ""
    return top, "" if parent in ("", root) else "the span it names did not come"


def _match_instrumented_spans(
    spans: Sequence[QueryRow], kinds: Mapping[str, str], calls: Sequence[RecordedCall]
) -> dict[str, str]:
    """Find the shortest instrumented span of each call, by the response id."""
    answers: dict[str, list[str]] = defaultdict(list)
    for recorded in calls:
        answers[recorded.response_key].append(recorded.span_id)
    matched: dict[str, QueryRow] = {}
    for row in spans:
        if kinds[row["span_id"]] != "model" or not _is_agent_span(row):
            continue
        for key in find_response_keys(row["attributes"]):
            for call in answers.get(key, ()):
                if call not in matched or _duration_ms(row) < _duration_ms(matched[call]):
                    matched[call] = row
    return {call: row["span_id"] for call, row in matched.items()}


def _find_open_span(at_ms: float, children: Mapping[str, Sequence[QueryRow]], top: str) -> str:
    at = top
    while True:
        open_spans = [row for row in children.get(at, ()) if row["start_ms"] <= at_ms < row["end_ms"]]
        if len(open_spans) != 1:
            return at
        at = open_spans[0]["span_id"]


def _break_cycles(placements: dict[str, tuple[str, str]], top: str) -> dict[str, tuple[str, str]]:
    """Move one span of each cycle to the top."""
    acyclic_placements, acyclic = dict(placements), {"", top}
    for name in placements:
        path: list[str] = []
        while name not in acyclic and name not in path:
            path.append(name)
            name = acyclic_placements[name][0]
        if name in path:
            acyclic_placements[name] = (top, "it is below itself")
        acyclic.update(path)
    return acyclic_placements


def _find_subject_call(row: QueryRow, kind: str, call_index: CallIndex) -> int | None:
    """Find the call that requested a tool, or that a reward or an annotation refers to."""
    if not _is_agent_span(row):
        return None
    named = call_index.find_referenced(row["attributes"])
    return call_index.find_preceding(row["start_ms"]) if named is None and kind in ("tool", "reward") else named


def _classify(row: QueryRow) -> str:
    if row["kind"] == "producer" and not _is_agent_span(row):
        return "publish"
    return "train" if row["scope"] == "lightningbus.learner" else kind_of(row["name"], row["attributes"])


def _is_agent_span(row: QueryRow) -> bool:
    return not row["scope"].startswith(OWN_SCOPE_PREFIX)


def _duration_ms(row: QueryRow) -> float:
    return float(row["end_ms"] - row["start_ms"])
