"""Cost of an attempt's calls to models that no node of ours answers, settled once all its spans are there. Pure.

Several instrumentations record one call, in any order. So spans become calls at the end:

1. A model span and all model spans below it are about one call, unless they have different response ids. A tool or an
   agent between two of them parts them.
2. Spans with the same response id are about one call: the id in ``gen_ai.response.id``, else one in their outputs.
3. Spans without any id are about a call of the gateway if they enclose it in time and name its model, or name none.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from heapq import nlargest
from typing import Any, Literal

from lightningbus.common.token_price import TokenPrice
from lightningbus.runners.recording.call_times import CallTimes
from lightningbus.schemas.semconv import attributes
from lightningbus.schemas.semconv.call_attribution import find_prefixed_key, find_response_keys, get_response_key
from lightningbus.schemas.semconv.span_kinds import kind_of
from lightningbus.schemas.spans import MAX_EXTERNAL_MODELS, MAX_MODEL_NAME, ExternalUsage, Span

MAX_MODEL_SPANS = 20_000
"""Most model spans of an attempt that are compared; each further one counts as an unpriced call."""
MAX_KEYS = 32
"""Most words of a span's outputs that are kept, the longest: ids of responses are long."""
MAX_KEY_CHARS = 64
MAX_TOKENS = 10_000_000
"""Most tokens of a call, with its prompt: no model takes more, so a larger count is wrong."""
INPUT_TOKENS = (attributes.INPUT_TOKENS, "gen_ai.usage.prompt_tokens", "llm.token_count.prompt")
OUTPUT_TOKENS = (attributes.OUTPUT_TOKENS, "gen_ai.usage.completion_tokens", "llm.token_count.completion")
"""Counts of tokens by the names of OpenTelemetry, of OpenLLMetry before it, and of OpenInference."""
MODELS = (
    attributes.REQUEST_MODEL,
    attributes.RESPONSE_MODEL,
    "llm.model_name",
    "langfuse.observation.model.name",
    "ai.model.id",
)
OTHER_MODELS = "(others)"
"""Name for the models of an attempt beyond the most that are listed."""

Source = Literal["node", "endpoint", "agent"]


@dataclass(frozen=True, slots=True)
class _ModelSpan:
    """Fields of a span about a model call that the price of the call depends on."""

    span_id: str
    source: Source
    names: tuple[str, ...]
    """Names of the model."""
    key: str
    """The key of its response; empty: it does not say."""
    words: frozenset[str]
    """Words of its outputs that may be that key."""
    prefixed_key: str
    """The first of them that is an id by its prefix."""
    tokens: tuple[int, int] | None
    """Tokens of the prompt and of the answer; None: not known."""
    start_ns: int
    end_ns: int


class ExternalCosts:
    """Prices the external model calls of one attempt, each once, however many instrumentations record it."""

    def __init__(self, prices: Mapping[str, TokenPrice]) -> None:
        """Prepare; ``prices`` are by pattern of the model's name, and the first that fits counts."""
        self._prices = prices
        self._spans: dict[str, _ModelSpan] = {}
        self._parents: dict[str, str] = {}
        self._keys: set[str] = set()
        self._num_further = 0

    def add_call(self, span: Span, is_external: bool) -> None:
        """Add a call of the gateway, which a node has answered, or an endpoint."""
        self._add(span, "endpoint" if is_external else "node", _read_tokens(span.attributes))

    def add(self, span: Span, is_kept: bool) -> None:
        """Add a span of the agent; without ``is_kept`` it is not recorded, and its tokens do not count."""
        kind = kind_of(span.name, span.attributes)
        if kind != "model":
            if is_kept and kind not in ("agent", "tool"):
                self._parents[span.span_id] = span.parent_span_id
            return
        tokens = _read_tokens(span.attributes)
        if span.status == "error" and tokens is None and not get_response_key(span.attributes):
            return  # it failed, and costs nothing
        self._add(span, "agent", tokens if is_kept else None)

    def settle(self) -> dict[str, ExternalUsage]:
        """Compute number, tokens and cost of the external calls, by model."""
        usage = {"": ExternalUsage(num_calls=self._num_further, num_unpriced_calls=self._num_further)}
        for spans in self._find_calls():
            if any(span.source == "node" for span in spans):
                continue
            spans.sort(key=lambda span: (span.source != "endpoint", span.start_ns, span.span_id))
            names = [name for span in spans for name in span.names]
            tokens = next((span.tokens for span in spans if span.tokens is not None), None)
            price = next((self._prices[pattern] for pattern in self._prices if _fits(pattern, names)), None)
            cost = None if tokens is None or price is None else price.compute_cost(*tokens)
            model = names[0] if names else ""
            if model not in usage and len(usage) >= MAX_EXTERNAL_MODELS - 1:
                model = OTHER_MODELS
            usage[model] = _add_usage(usage.get(model, ExternalUsage()), tokens or (0, 0), cost)
        return {model: each for model, each in usage.items() if each.num_calls}

    def _add(self, span: Span, source: Source, tokens: tuple[int, int] | None) -> None:
        if source == "agent" and span.span_id not in self._spans and len(self._spans) >= MAX_MODEL_SPANS:
            self._num_further += 1
            return
        key = get_response_key(span.attributes)
        words = frozenset() if key else self._choose_words(find_response_keys(span.attributes))
        self._parents[span.span_id] = span.parent_span_id
        self._spans[span.span_id] = _ModelSpan(
            span_id=span.span_id,
            source=source,
            names=tuple(str(span.attributes[name])[:MAX_MODEL_NAME] for name in MODELS if span.attributes.get(name)),
            key=key or ("" if source == "agent" else span.span_id),
            words=words,
            prefixed_key="" if key else find_prefixed_key(span.attributes),
            tokens=tokens,
            start_ns=span.start_ns,
            end_ns=span.end_ns,
        )
        if key:
            self._keys.add(key)

    def _choose_words(self, words: set[str]) -> frozenset[str]:
        """Keep the words that are known as keys, else the longest: other spans may come with their key."""
        short = (word for word in sorted(words) if len(word) <= MAX_KEY_CHARS)
        return frozenset(words & self._keys or nlargest(MAX_KEYS, short, key=len))

    def _find_calls(self) -> Iterable[list[_ModelSpan]]:
        """Group the spans by call; those of a call that the gateway has recorded are left out where they have no id."""
        keys = {span.key for span in self._spans.values() if span.key}
        of_gateway = [span for span in self._spans.values() if span.source != "agent"]
        times = CallTimes((name, span.start_ns, span.end_ns) for span in of_gateway for name in ("", *span.names))
        own_models = {name for span in of_gateway if span.source == "node" for name in span.names}
        trees: dict[str, list[_ModelSpan]] = defaultdict(list)
        for span_id, top in self._find_tops().items():
            trees[top].append(self._spans[span_id])
        calls: dict[str, list[_ModelSpan]] = defaultdict(list)
        for top, tree in trees.items():
            members = [(span, {span.key} if span.key else span.words & keys) for span in tree]
            if not any(span_keys for _, span_keys in members):
                if _is_recorded(tree, own_models, times):
                    continue
                members = [(span, {span.prefixed_key} - {""}) for span in tree]
            tree_keys = set[str]().union(*(span_keys for _, span_keys in members)) or {f"span {top}"}
            for span, span_keys in members:
                for key in span_keys or (tree_keys if len(tree_keys) == 1 else ()):
                    calls[key].append(span)
        return calls.values()

    def _find_tops(self) -> dict[str, str]:
        """Find the topmost model span above each model span, or itself; one that is below itself has any of these."""
        tops: dict[str, str] = {}
        for span_id in self._spans:
            path: dict[str, None] = {}
            while span_id in self._parents and span_id not in tops and span_id not in path:
                path[span_id] = None
                span_id = self._parents[span_id]
            top = tops.get(span_id, "")
            for below in reversed(path):
                top = top or (below if below in self._spans else "")
                tops[below] = top
        return {span_id: tops[span_id] for span_id in self._spans}


def _is_recorded(tree: Sequence[_ModelSpan], own_models: set[str], times: CallTimes) -> bool:
    """Return whether spans without ids are about a call that the gateway has recorded."""
    names = {name for span in tree for name in span.names}
    if not own_models.isdisjoint(names):
        return True
    return any(times.has_call(name, span.start_ns, span.end_ns) for span in tree for name in names or {""})


def _fits(pattern: str, names: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names)


def _add_usage(usage: ExternalUsage, tokens: tuple[int, int], cost: float | None) -> ExternalUsage:
    return ExternalUsage(
        num_calls=usage.num_calls + 1,
        num_unpriced_calls=usage.num_unpriced_calls + (cost is None),
        prompt_tokens=usage.prompt_tokens + tokens[0],
        response_tokens=usage.response_tokens + tokens[1],
        cost=usage.cost + (cost or 0.0),
    )


def _read_tokens(span_attributes: Mapping[str, Any]) -> tuple[int, int] | None:
    """Read the tokens of prompt and answer; None: a span gives none, or more than a call can have."""
    prompt, response = (_read_count(span_attributes, names) for names in (INPUT_TOKENS, OUTPUT_TOKENS))
    if (prompt is None and response is None) or (prompt or 0) + (response or 0) > MAX_TOKENS:
        return None
    return prompt or 0, response or 0


def _read_count(span_attributes: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    """Return the first count of tokens that is one: an agent may write anything."""
    for name in names:
        value = span_attributes.get(name)
        if isinstance(value, int | float | str) and not isinstance(value, bool):
            try:
                number = int(value)
            except (ValueError, OverflowError):
                continue
            if number >= 0:
                return number
    return None
