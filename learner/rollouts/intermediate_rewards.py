"""Intermediate rewards of calls, from the spans an agent emits: explicit ones, and what rules make of others. Pure."""

import json
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from lightningbus.learner.settings.algorithm import AirRule
from lightningbus.schemas.semconv import attributes
from lightningbus.schemas.semconv.call_attribution import CallIndex, RecordedCall
from lightningbus.schemas.semconv.rewards import extract_rewards, is_usable
from lightningbus.schemas.semconv.span_kinds import kind_of
from lightningbus.schemas.spans import ModelCall, Span


def intermediate_rewards(spans: Sequence[Span], outcome_span: str, rules: Sequence[AirRule]) -> tuple[float, ...]:
    """Sum the rewards that each call of an attempt gets from its spans, in order.

    A span belongs to the call it names, by a link or by the tool call it answers, else to the call that last ended
    before it began; a span before the first call belongs to none. ``outcome_span`` is the span the outcome was read
    from.
    """
    order = sorted((span for span in spans if span.call is not None), key=lambda span: _call(span).index)
    call_index = CallIndex(
        [RecordedCall(span.span_id, span.attributes, span.end_ns, _call(span).response) for span in order]
    )
    totals = [0.0] * len(order)
    for span in sorted(spans, key=lambda span: (span.start_ns, span.span_id)):  # one order, so one sum
        if span.call is not None or attributes.OUTCOME in span.attributes:  # the root span repeats the outcome
            continue
        if span.scope == attributes.GRADER_SCOPE:
            continue
        reward = sum(rule.reward for rule in rules if _fits(rule, span))
        if span.span_id != outcome_span:
            reward += sum(map(_read, extract_rewards(span)))
        if reward:
            named = call_index.find_referenced(span.attributes)
            index = named if named is not None else call_index.find_preceding(span.start_ns)
            if index is not None:
                totals[index] += reward
    return tuple(totals)


def _fits(rule: AirRule, span: Span) -> bool:
    return (
        fnmatchcase(span.name, rule.name)
        and rule.kind in (None, kind_of(span.name, span.attributes))
        and rule.status in (None, span.status)
        and all(
            key in span.attributes and fnmatchcase(attributes.to_text(span.attributes[key]), pattern)
            for key, pattern in rule.attributes.items()
        )
    )


def _read(value: Any) -> float:
    """Read a reward span's value, 0 if it is no reward; the store keeps a number as text."""
    try:
        number = float(json.loads(attributes.to_text(value)))
    except (TypeError, ValueError, OverflowError, RecursionError):
        return 0.0
    return number if is_usable(number) else 0.0


def _call(span: Span) -> ModelCall:
    assert span.call is not None
    return span.call
