"""Verdicts onto the bus: the engine's, the version's with its revocation, and an alert while the engine lives."""

import logging
import time
from collections.abc import Collection

from lightningbus.alerts.publisher import AlertPublisher, Reason
from lightningbus.alerts.table import describe
from lightningbus.auditor.evidence import Finding
from lightningbus.auditor.judge import is_convicted, verdicts_on
from lightningbus.bus.client import Bus
from lightningbus.bus.errors import BusError
from lightningbus.bus.weights.audit_log import AuditLog
from lightningbus.bus.weights.registry import WeightRegistry
from lightningbus.common.observability import metrics
from lightningbus.schemas.audits.events import AuditVerdict
from lightningbus.schemas.weights.events import MAX_ACTOR_CHARS

log = logging.getLogger(__name__)


class Convictions:
    """The verdicts on one model."""

    def __init__(self, bus: Bus, model: str, actor: str, is_frozen: bool = False) -> None:
        """Prepare the record; ``actor`` revokes versions, but never a frozen model's only one."""
        self._actor, self._is_frozen = actor[:MAX_ACTOR_CHARS], is_frozen
        self._verdicts, self._releases = AuditLog(bus, model), WeightRegistry(bus, model)
        self._publisher = AlertPublisher(bus, "audit")
        self._alerts: dict[str, str] = {}
        """Reasons by engine, of engines that still serve."""

    @property
    def num_verdicts(self) -> int:
        """Number of verdicts."""
        return len(self._verdicts.state.verdicts)

    @property
    def alert(self) -> str:
        """Current alerts as one sentence; empty: none."""
        return "; ".join(self._alerts.values())

    async def refresh(self) -> None:
        """Look up the verdicts there are; raises as `AuditLog.refresh`."""
        await self._verdicts.refresh()

    def applies_to(self, engine_id: str, version: int) -> bool:
        """Return whether tokens of an engine and version are quarantined, by the last state read."""
        return is_convicted(engine_id, version, self._verdicts.state.verdicts)

    async def add(self, engine_id: str, version: int, finding: Finding) -> None:
        """Publish the verdicts that follow from a finding; raises as `AuditLog.append`."""
        before = await self._verdicts.refresh()
        for verdict in verdicts_on(engine_id, version, finding, before.verdicts, time.time_ns()):
            await self._verdicts.append(verdict)
            metrics.audit_verdicts.inc()
            sentence = describe_verdict(verdict)
            log.error("%s", sentence)
            if verdict.engine_id:
                self._alerts[engine_id] = sentence
                await self._publish_alerts()
                continue
            if not self._is_frozen:
                await self._releases.append_decision(
                    "revoked", verdict.version, actor=self._actor, reason=verdict.reason
                )

    async def resolve_alerts(self, living: Collection[str]) -> None:
        """End the alerts of engines that are gone; ``living`` are the engines that serve."""
        self._alerts = {engine_id: self._alerts[engine_id] for engine_id in self._alerts if engine_id in living}
        await self._publish_alerts()

    async def _publish_alerts(self) -> None:
        try:
            await self._publisher.update(
                {engine_id: Reason("inference", sentence) for engine_id, sentence in self._alerts.items()}
            )
        except BusError as error:
            log.warning("an alert is not published: %s", error)


def describe_verdict(verdict: AuditVerdict) -> str:
    """Word a verdict as a sentence. Pure."""
    values = {"version": verdict.version, "reason": verdict.reason, "num_tokens": verdict.num_tokens}
    name = "engine_fails_audit" if verdict.engine_id else "version_fails_audit"
    return describe(name, engine=verdict.engine_id, evidence=verdict.evidence, **values)
