"""Tokens that the auditor's verdicts quarantine. Pure."""

from collections.abc import Iterable, Sequence

from lightningbus.schemas.audits.events import MAX_VERDICTS, AuditState, AuditVerdict
from lightningbus.schemas.spans import ModelCall


def applies_to(verdict: AuditVerdict, engine_id: str, version: int) -> bool:
    """Return whether a verdict quarantines the tokens that an engine sampled under a version."""
    if verdict.engine_id:
        return verdict.engine_id == engine_id and version >= verdict.version
    return version == verdict.version


def standing_verdicts(verdicts: Sequence[AuditVerdict]) -> list[AuditVerdict]:
    """List the verdicts that no later one overturns."""
    standing: list[AuditVerdict] = []
    for verdict in verdicts:
        if verdict.action == "convicted":
            standing.append(verdict)
        else:
            standing = [other for other in standing if _subject_of(other) != _subject_of(verdict)]
    return standing


def _subject_of(verdict: AuditVerdict) -> str | int:
    """Return the engine, else the version, that a verdict is on."""
    return verdict.engine_id or verdict.version


def find_verdict(calls: Iterable[ModelCall], verdicts: Sequence[AuditVerdict]) -> AuditVerdict | None:
    """Find the first standing verdict that quarantines a token of these calls; None: all may be trained."""
    samplers = {(span.engine_id, span.version) for call in calls for span in call.weight_versions}
    return next(
        (
            verdict
            for verdict in standing_verdicts(verdicts)
            if any(applies_to(verdict, *sampler) for sampler in samplers)
        ),
        None,
    )


def add_verdict(state: AuditState, verdict: AuditVerdict) -> AuditState:
    """Append a verdict to the state."""
    return AuditState(model=state.model, verdicts=(*state.verdicts, verdict)[-MAX_VERDICTS:])
