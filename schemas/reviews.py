"""Events about reviews: what a person says about a rollout."""

from typing import Annotated

from msgspec import Meta

from lightningbus.schemas.base import Event, Identifier, NonNegativeInt, SubjectToken

MAX_NOTE = 4000
"""Characters of a note."""
MAX_NAME = 64
"""Characters of a reviewer's name, and of a data set's."""


class RolloutReviewed(Event, frozen=True, kw_only=True):
    """The review of one rollout by one person; a later one by the same person replaces it."""

    run_id: SubjectToken
    rollout_id: Identifier
    execution_id: Identifier
    reviewer: Annotated[str, Meta(max_length=MAX_NAME)] = ""
    """Name that the person gave, which nobody checks."""
    score: float | None = None
    note: Annotated[str, Meta(max_length=MAX_NOTE)] = ""
    dataset: Annotated[str, Meta(max_length=MAX_NAME)] = ""
    """Name of the data set that the rollout is added to; empty: none."""
    reviewed_at_ns: NonNegativeInt
