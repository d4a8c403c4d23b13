"""Cost of an attempt's calls to models that no node of ours answers. Pure."""

from collections import deque
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from msgspec.structs import replace

from lightningbus.runners.settings import ModelPrice
from lightningbus.schemas.semconv import attributes
from lightningbus.schemas.semconv.span_kinds import kind_of, normalize_response_id
from lightningbus.schemas.spans import Span

MILLION = 1_000_000
MAX_INTERVALS = 64
"""Most calls that a span without a model's name is compared with: one around a call ends soon after it."""
INPUT_TOKENS = (attributes.INPUT_TOKENS, "gen_ai.usage.prompt_tokens", "llm.token_count.prompt")
OUTPUT_TOKENS = (attributes.OUTPUT_TOKENS, "gen_ai.usage.completion_tokens", "llm.token_count.completion")
"""Counts of tokens by the names of OpenTelemetry, of OpenLLMetry before it, and of OpenInference."""
MODELS = (attributes.REQUEST_MODEL, attributes.RESPONSE_MODEL, "llm.model_name")
OURS = (attributes.EXTERNAL_COST, attributes.EXTERNAL_UNPRICED)


class ExternalCosts:
    """Prices the external model calls of one attempt, each once, however many instrumentations record it."""

    def __init__(self, prices: Mapping[str, ModelPrice]) -> None:
        """Prepare; ``prices`` are by pattern of the model's name, and the first that fits counts."""
        self._prices = prices
        self._response_keys: set[str] = set()
        self._own_models: set[str] = set()
        self._parents: set[str] = set()  # of calls: a span around a call is the same call to another instrumentation
        self._intervals: deque[tuple[int, int]] = deque(maxlen=MAX_INTERVALS)  # of the last calls that nodes answered
        self.cost = 0.0
        self.num_calls = self.num_unpriced = 0

    def exclude(self, span: Span) -> None:
        """Take note of a call that a node of ours answers: spans of the agent about it are no external calls."""
        self._response_keys.add(_response_key(span.attributes))
        self._parents.add(span.parent_span_id)
        self._intervals.append((span.start_ns, span.end_ns))
        self._own_models.update(_models_of(span.attributes))

    def price(self, span: Span) -> Span:
        """Return a span with its cost, or marked as unpriced, if it is an external call that is new; else unmarked."""
        unmarked = {name: value for name, value in span.attributes.items() if name not in OURS}
        if not self._is_new_call(span):
            return span if len(unmarked) == len(span.attributes) else replace(span, attributes=unmarked)
        cost = self._compute_cost(span.attributes)
        mark = {attributes.EXTERNAL_UNPRICED: True} if cost is None else {attributes.EXTERNAL_COST: cost}
        return replace(span, attributes=unmarked | mark)

    def add(self, priced: Span) -> None:
        """Count a span that `price` returned."""
        marks = priced.attributes.keys() & set(OURS)
        if marks:
            self._response_keys.add(_response_key(priced.attributes))
            self._parents.add(priced.parent_span_id)
            self.num_calls += 1
            self.num_unpriced += attributes.EXTERNAL_UNPRICED in marks
            self.cost += priced.attributes.get(attributes.EXTERNAL_COST, 0.0)

    def _is_new_call(self, span: Span) -> bool:
        if kind_of(span.name, span.attributes) != "model" or span.span_id in self._parents:
            return False
        if key := _response_key(span.attributes):
            return key not in self._response_keys
        if span.status == "error" and not _has_tokens(span.attributes):
            return False
        if names := _models_of(span.attributes):
            return self._own_models.isdisjoint(names)
        return not any(span.start_ns <= start and end <= span.end_ns for start, end in self._intervals)

    def _compute_cost(self, span_attributes: Mapping[str, Any]) -> float | None:
        """Compute the cost of a call; None: its model has no price, or it gives no tokens."""
        names = _models_of(span_attributes)
        fits = (price for pattern, price in self._prices.items() if any(fnmatchcase(name, pattern) for name in names))
        price = next(fits, None)
        if price is None or not _has_tokens(span_attributes):
            return None
        tokens = _count(span_attributes, INPUT_TOKENS) or 0, _count(span_attributes, OUTPUT_TOKENS) or 0
        return (tokens[0] * price.input + tokens[1] * price.output) / MILLION


def _models_of(span_attributes: Mapping[str, Any]) -> list[str]:
    return [str(span_attributes[name]) for name in MODELS if span_attributes.get(name)]


def _response_key(span_attributes: Mapping[str, Any]) -> str:
    return normalize_response_id(str(span_attributes.get(attributes.RESPONSE_ID, "")))


def _has_tokens(span_attributes: Mapping[str, Any]) -> bool:
    return _count(span_attributes, INPUT_TOKENS) is not None or _count(span_attributes, OUTPUT_TOKENS) is not None


def _count(span_attributes: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    """Return the first count of tokens that is one: an agent may write anything."""
    for name in names:
        value = span_attributes.get(name)
        if isinstance(value, int | float | str) and not isinstance(value, bool):
            try:
                number = int(value)
            except (ValueError, OverflowError):
                continue
            if 0 <= number < 2**40:
                return number
    return None
