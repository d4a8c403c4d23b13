"""Usage of an attempt: tokens, versions, and time by activity. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from lightningbus.schemas.base import MAX_POLICIES
from lightningbus.schemas.semconv.span_kinds import kind_of
from lightningbus.schemas.spans import ModelCall, Span, Usage
from lightningbus.schemas.text import replace_surrogates

Interval = tuple[int, int]
"""Start and end in nanoseconds."""


@dataclass(slots=True)
class UsageMeter:
    """Counts spans as they end; ``task_model`` is the model of the task."""

    task_model: str
    num_calls: int = 0
    prompt_tokens: int = 0
    response_tokens: int = 0
    num_truncated: int = 0
    versions: dict[str, set[int]] = field(default_factory=dict)
    """Weight versions by model."""
    _model: list[Interval] = field(default_factory=list)
    _tool: list[Interval] = field(default_factory=list)

    def add_call(self, call: ModelCall, prompt_tokens: int, span: Span) -> None:
        """Count a model call; ``prompt_tokens`` are those of its whole prompt."""
        self.num_calls += 1
        self.prompt_tokens += prompt_tokens
        self.response_tokens += len(call.response_ids) // 4
        self.num_truncated += call.finish_reason == "length"
        if call.weight_versions:
            self.versions.setdefault(replace_surrogates(call.model), set()).update(
                run.version for run in call.weight_versions
            )
        self._model.append((span.start_ns, span.end_ns))

    def add(self, span: Span) -> None:
        """Add any other span."""
        if kind_of(span.name, span.attributes) == "tool":
            self._tool.append((span.start_ns, span.end_ns))

    def usage(self) -> Usage:
        """Sum up the usage so far."""
        main_versions = self.versions.get(self.task_model, set())
        model, both = total_seconds(self._model), total_seconds([*self._model, *self._tool])
        return Usage(
            num_calls=self.num_calls,
            prompt_tokens=self.prompt_tokens,
            response_tokens=self.response_tokens,
            num_truncated=self.num_truncated,
            min_weight_version=min(main_versions, default=None),
            max_weight_version=max(main_versions, default=None),
            newest_versions={model: max(versions) for model, versions in sorted(self.versions.items())[:MAX_POLICIES]},
            model_seconds=model,
            tool_seconds=both - model,
        )


def total_seconds(intervals: Iterable[Interval]) -> float:
    """Measure the time covered by at least one of the intervals."""
    return sum(end - start for start, end in _merged(sorted(intervals))) / 1e9


def _merged(intervals: Iterable[Interval]) -> Iterator[Interval]:
    current: Interval | None = None
    for start, end in intervals:
        if current is not None and start <= current[1]:
            current = (current[0], max(current[1], end))
            continue
        if current is not None:
            yield current
        current = (start, end)
    if current is not None:
        yield current
