"""Rows of prompt versions and of the decisions on them. Pure."""

from collections.abc import Iterator

from lightningbus.schemas.prompts import PromptReleaseState, PromptVersion
from lightningbus.store.ingest.rows.row import Row
from lightningbus.store.ingest.rows.weight_rows import decision_fields


def prompt_version_row(version: PromptVersion) -> Row:
    """Build the row of a published version."""
    return {
        "name": version.name,
        "version": version.version,
        "text": version.text,
        "sha256": version.sha256,
        "agent": version.agent,
        "role": version.role or "",
        "parent": version.parent,
        "run_id": version.run_id or "",
        "proposal_id": version.proposal_id,
        "created_at": version.created_at_ns,
    }


def prompt_decision_rows(release: PromptReleaseState) -> Iterator[tuple[str, Row]]:
    """Yield the row of the new decision; the earlier ones came with earlier events."""
    for decision in release.decisions[-1:]:
        yield "raw_prompt_decisions", {"name": release.name, **decision_fields(decision)}
