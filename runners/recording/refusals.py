"""Spans and log records that are not kept, and why. Pure."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from lightningbus.schemas.text import shorten

RefusalKind = Literal["id", "form", "time", "size", "room"]
MAX_SENTENCES = 5
"""Different reasons that an answer gives."""
MAX_SENTENCE = 200
"""Characters of one sentence, which may quote the sender."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Reason to drop a span: a word for the metric, and a sentence for the sender."""

    kind: RefusalKind
    sentence: str


class InvalidSpanError(ValueError):
    """A span cannot be kept; others of the same request can."""

    def __init__(self, kind: RefusalKind, sentence: str) -> None:
        super().__init__(sentence)
        self.refusal = Refusal(kind, sentence)


@dataclass(slots=True)
class Refusals:
    """Those of one request."""

    kinds: Counter[RefusalKind] = field(default_factory=Counter)
    _sentences: Counter[str] = field(default_factory=Counter)

    def add(self, refusal: Refusal, times: int = 1) -> None:
        """Count a refusal."""
        self.kinds[refusal.kind] += times
        self._sentences[shorten(refusal.sentence, MAX_SENTENCE)] += times

    @property
    def total(self) -> int:
        """Number of refused spans."""
        return self.kinds.total()

    def describe(self) -> str:
        """Describe every reason with its count, the most frequent first."""
        return "; ".join(_join(self._sentences.most_common(MAX_SENTENCES), len(self._sentences) - MAX_SENTENCES))


def _join(counted: Iterable[tuple[str, int]], num_left: int) -> Iterable[str]:
    yield from (f"{count} refused: {sentence}" for sentence, count in counted)
    if num_left > 0:
        yield f"{num_left} reasons more"
