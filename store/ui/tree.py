"""The tree of one rollout's spans, whoever made them. Pure; what is stored stays as it came.

A span hangs where it says, if that is a span of this rollout, and below the attempt otherwise. A model call that the
gateway recorded is the same as the span an instrumentation made of it, so it hangs under that one:

1. where its agent said so in the request (``traceparent``),
2. else under the smallest span of a model call that has the id of its answer,
3. else under the innermost span that was open when it began; where two beside each other were, under what holds both.

What names the model call it is about, as Agent Lightning's links do, hangs under that call.
"""

import re
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from schemas.semconv import attributes
from schemas.semconv.call_attribution import CallIndex, RecordedCall
from schemas.semconv.span_kinds import (
    agl_links,
    entity_name,
    kind_of,
    normalize_response_id,
    output_text,
    payload_keys,
    summarize,
)

Row = dict[str, Any]

OURS = "lightningbus."
"""How the scopes of our own spans begin."""
KEY = re.compile(r"[0-9A-Za-z]{8,}")
"""What may be the id of an answer in a text; a shorter word may stand there by chance."""


def tree(spans: Sequence[Row], calls: Iterable[Row], contents: Iterable[Row], root: str) -> list[Row]:
    """Spans with their place and what they are; ``calls`` and ``contents`` are the model calls, ``root`` the attempt.

    To a span are added: ``parent``, which is empty or a span of these; ``placed``, why it hangs there where it does not
    say so itself; ``what`` it is; ``title``, a tool's or agent's own name; ``gist`` of it in one line; ``shown``, the
    attributes to read first; and ``call``, the model call that it is, answers or judges.
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
    own = {span["span_id"]: call for call, span in numbers}
    kinds = {row["span_id"]: _what(row) for row in spans}
    places = _places(spans, kinds, call_index, root)
    made = []
    for row in spans:
        name, said, what = row["name"], row["attributes"], kinds[row["span_id"]]
        parent, placed = places[row["span_id"]]
        about = _about(row, what, call_index)
        made.append(
            {
                **row,
                "parent": parent,
                "placed": placed,
                "what": what,
                "title": entity_name(name, said),
                "gist": summarize(name, said),
                "shown": payload_keys(said),
                "call": own.get(row["span_id"], None if about is None else numbers[about][0]),
            }
        )
    return made


def _places(
    spans: Sequence[Row], kinds: Mapping[str, str], call_index: CallIndex, root: str
) -> dict[str, tuple[str, str]]:
    """For each span its parent, and why where it did not say so."""
    known = {row["span_id"]: row for row in spans}
    top = root if root in known else ""
    calls = {call.span_id for call in call_index.calls}
    places = {row["span_id"]: _said(row, known, calls, top, root) for row in spans}
    twins = _twins(spans, kinds, call_index.calls)
    taken = set(twins.values())
    below: dict[str, list[Row]] = defaultdict(list)
    for row in spans:
        if _theirs(row) and row["span_id"] not in taken:
            below[places[row["span_id"]][0]].append(row)
    for call in call_index.calls:
        if places[call.span_id][0] != top:
            continue
        if call.span_id in twins:
            places[call.span_id] = (twins[call.span_id], "it has the id of this answer")
        elif (found := _open_at(known[call.span_id]["start_ms"], below, top)) != top:
            places[call.span_id] = (found, "it was open when the call began")
    for row in spans:
        about = call_index.find_referenced(row["attributes"]) if any(agl_links(row["attributes"])) else None
        if about is not None:
            places[row["span_id"]] = (call_index.calls[about].span_id, "its link names this call")
    return _without_circles(places, top)


def _said(row: Row, known: Container[str], calls: Container[str], top: str, root: str) -> tuple[str, str]:
    """Where a span says that it hangs."""
    parent, name = row["parent_span_id"], row["span_id"]
    if parent in known and parent != name:
        return parent, ""
    if name == top or (not _theirs(row) and name not in calls):
        return "", ""
    return top, "" if parent in ("", root) else "the span it names did not come"


def _twins(spans: Sequence[Row], kinds: Mapping[str, str], calls: Sequence[RecordedCall]) -> dict[str, str]:
    """For each call the smallest span that an instrumentation made of it, by the id of the answer."""
    answers: dict[str, list[str]] = defaultdict(list)
    for one in calls:
        answers[one.response_key].append(one.span_id)
    found: dict[str, Row] = {}
    for row in spans:
        if kinds[row["span_id"]] != "model" or not _theirs(row):
            continue
        said = row["attributes"]
        named = normalize_response_id(str(said.get(attributes.RESPONSE_ID, "")))
        for key in {named} if named else set(KEY.findall(output_text(said))):
            for call in answers.get(key, ()):
                if call not in found or _took(row) < _took(found[call]):
                    found[call] = row
    return {call: row["span_id"] for call, row in found.items()}


def _open_at(moment: float, below: Mapping[str, Sequence[Row]], top: str) -> str:
    at = top
    while True:
        holding = [row for row in below.get(at, ()) if row["start_ms"] <= moment < row["end_ms"]]
        if len(holding) != 1:
            return at
        at = holding[0]["span_id"]


def _without_circles(places: dict[str, tuple[str, str]], top: str) -> dict[str, tuple[str, str]]:
    """Of spans that are below each other one hangs from the top."""
    made, fine = dict(places), {"", top}
    for name in places:
        path: list[str] = []
        while name not in fine and name not in path:
            path.append(name)
            name = made[name][0]
        if name in path:
            made[name] = (top, "it is below itself")
        fine.update(path)
    return made


def _about(row: Row, what: str, call_index: CallIndex) -> int | None:
    """The call that asked for a tool, or that a reward or an annotation is about."""
    if not _theirs(row):
        return None
    named = call_index.find_referenced(row["attributes"])
    return call_index.find_preceding(row["start_ms"]) if named is None and what in ("tool", "reward") else named


def _what(row: Row) -> str:
    if row["kind"] == "producer" and not _theirs(row):
        return "publish"
    return "train" if row["scope"] == "lightningbus.learner" else kind_of(row["name"], row["attributes"])


def _theirs(row: Row) -> bool:
    return not row["scope"].startswith(OURS)


def _took(row: Row) -> float:
    return float(row["end_ms"] - row["start_ms"])
