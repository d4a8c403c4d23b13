"""The fields of a question that bound and draw its answer, by the names that an endpoint takes. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

LIMITS: tuple[str | None, ...] = ("max_tokens", "max_completion_tokens", None)
"""Names for the most tokens of an answer, in the order in which they are tried; None leaves the bound out."""
TEMPERATURE = "temperature"
SIZE = re.compile(
    r"too (large|long|many|big|small)|exceed|context|at (most|least)|(less|greater) than|[<>]=|minimum|maximum|range",
    re.IGNORECASE,
)
"""Words of an endpoint that takes the field, and refuses its number."""


@dataclass(frozen=True, slots=True)
class SamplingFields:
    """Names of the fields that an endpoint takes; reasoning models refuse ``max_tokens`` and ``temperature``."""

    limit: str | None = LIMITS[0]
    has_temperature: bool = True

    def apply(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return a request with ``max_tokens`` and ``temperature`` in the endpoint's own fields."""
        fields = dict(request)
        limit = fields.pop("max_tokens", None)
        if self.limit is not None and limit is not None:
            fields[self.limit] = limit
        if not self.has_temperature:
            fields.pop(TEMPERATURE, None)
        return fields

    def after_refusal(self, reason: str) -> "SamplingFields | None":
        """Return the fields to try after an endpoint's refusal; None: the refusal is not about these fields."""
        fields = self
        if self.has_temperature and _is_named(TEMPERATURE, reason):
            fields = replace(fields, has_temperature=False)
        if self.limit is not None and _is_named(self.limit, reason) and not SIZE.search(reason):
            fields = replace(fields, limit=LIMITS[LIMITS.index(self.limit) + 1])
        return None if fields is self else fields

    def describe(self) -> str:
        """Say which fields differ from the usual ones; empty: none."""
        limit = {LIMITS[0]: "", None: "no bound on its tokens"}.get(self.limit, str(self.limit))
        return " and ".join(filter(None, (limit, "" if self.has_temperature else "no temperature")))


def _is_named(field: str, reason: str) -> bool:
    return re.search(rf"\b{field}\b", reason, re.IGNORECASE) is not None
