"""Verdicts from evidence: on an engine, and on a version that fails on a second engine. Pure."""

import math
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from lightningbus.auditor.evidence import AuditedTokens, Evidence, Finding
from lightningbus.auditor.settings import AuditorSettings
from lightningbus.schemas.audits.events import AuditVerdict
from lightningbus.schemas.audits.quarantine import applies_to, standing_verdicts

SUSPECT_EVIDENCE = 7.0
"""Evidence from which every rollout of the engine is audited; natural log."""

MAX_ENGINES = 1000
"""Against which evidence is kept; that of the engine audited longest ago gives way."""


class Judge:
    """Keeps the evidence against each engine."""

    def __init__(self, settings: AuditorSettings, tolerance: float) -> None:
        """Prepare a judge without evidence; ``tolerance`` is in nats."""
        self._share, self.tolerance = settings.differing_share, tolerance
        self._threshold = -math.log(settings.false_alarm_rate)
        self._evidence: OrderedDict[str, Evidence] = OrderedDict()

    def add(self, engine_id: str, version: int, tokens: AuditedTokens) -> Finding:
        """Take audited tokens; return the present evidence against the engine."""
        evidence = self._evidence.setdefault(engine_id, Evidence(self.tolerance, self._share))
        self._evidence.move_to_end(engine_id)
        if len(self._evidence) > MAX_ENGINES:
            self._evidence.popitem(last=False)
        evidence.add(tokens, version)
        return evidence.find()

    def is_guilty(self, finding: Finding) -> bool:
        """Return whether the evidence exceeds that of any sound engine."""
        return finding.log_evidence >= self._threshold

    def suspects(self) -> frozenset[str]:
        """List the engines against which there is some evidence."""
        findings = ((engine_id, evidence.find().log_evidence) for engine_id, evidence in self._evidence.items())
        return frozenset(engine_id for engine_id, evidence in findings if evidence >= SUSPECT_EVIDENCE)

    def forget(self, engine_id: str) -> None:
        """Drop the evidence against an engine that is convicted: it is stopped."""
        self._evidence.pop(engine_id, None)


def verdicts_on(
    engine_id: str, version: int, finding: Finding, before: Sequence[AuditVerdict], now_ns: int
) -> list[AuditVerdict]:
    """Derive the verdicts from a finding made on tokens of a version; ``before`` are the earlier ones.

    The engine first. The version too if it failed on another engine before: then restarting engines is no help.
    """
    if is_convicted(engine_id, version, before):
        return []
    on_engine = AuditVerdict(
        engine_id=engine_id,
        version=min(finding.onset_version, version),
        failed_version=version,
        reason=finding.reason,
        num_tokens=finding.num_tokens,
        evidence=finding.log_evidence,
        decided_at_ns=now_ns,
    )
    others = [
        verdict for verdict in standing_verdicts(before) if verdict.engine_id and verdict.failed_version == version
    ]
    if not others:
        return [on_engine]
    reason = f"{finding.reason}, on engines {others[-1].engine_id} and {engine_id}"
    return [on_engine, replace(on_engine, engine_id="", version=version, reason=reason)]


def is_convicted(engine_id: str, version: int, verdicts: Iterable[AuditVerdict]) -> bool:
    """Return whether tokens of an engine and version are quarantined already."""
    return any(applies_to(verdict, engine_id, version) for verdict in standing_verdicts(tuple(verdicts)))
