"""The auditor process: draws rollouts off the bus, recomputes their tokens, and publishes verdicts."""

import asyncio
import logging
import os
import secrets
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import numpy as np
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from lightningbus.auditor.budget import CpuBudget
from lightningbus.auditor.convictions import Convictions
from lightningbus.auditor.draw import Draw, Sampler
from lightningbus.auditor.evidence import AuditedTokens, Finding
from lightningbus.auditor.judge import Judge
from lightningbus.auditor.reference_model import ReferenceModel
from lightningbus.auditor.samples import AuditSample, build_samples
from lightningbus.auditor.settings import AuditorSettings
from lightningbus.auditor.versions import VersionLoader
from lightningbus.bus.client import Bus
from lightningbus.bus.errors import BusError
from lightningbus.bus.fleet.heartbeats import default_instance_id
from lightningbus.common.aio import first_completed
from lightningbus.common.observability import metrics
from lightningbus.common.observability.faults import count_fault
from lightningbus.schemas import ids, subjects
from lightningbus.schemas.audits.events import RolloutAudit
from lightningbus.schemas.codec import DecodeError, decode
from lightningbus.schemas.fleet import Heartbeat
from lightningbus.schemas.spans import SpanBatch
from lightningbus.schemas.text import shorten_line

log = logging.getLogger(__name__)

MAX_QUEUED = 200
"""Calls that wait to be recomputed; the oldest is left out for a new one."""
NICENESS = 10
BURST_SECONDS = 5.0
"""CPU time that may be saved up while there is nothing to do."""
TOLERANCES = {"float32": 0.01}
DEFAULT_TOLERANCE = 0.25
"""Accepted difference by the engines' numeric type. vLLM and transformers round bfloat16 differently: most tokens
differ by 0.01 nats, one in a hundred by more than 0.1.
"""


class AuditorError(Exception):
    """The auditor cannot start; the message gives the reason."""


async def run(bus: Bus, settings: AuditorSettings, stop: asyncio.Event) -> None:
    """Audit until asked to stop; raises `AuditorError` if there is no model at ``model_path``."""
    if not (settings.model_path / "config.json").exists():
        raise AuditorError(f"model_path: {settings.model_path} holds no model (no config.json)")
    with suppress(OSError):
        os.nice(NICENESS)
    await Auditor(bus, settings).run(stop)


class Auditor:
    """One auditor; several of one model share the verdicts, not the evidence."""

    def __init__(self, bus: Bus, settings: AuditorSettings) -> None:
        self._bus, self._settings = bus, settings
        self._nodes = bus.fleet("inference")
        self._draw = Draw(settings.share, secrets.token_bytes(32))
        self._judge = Judge(settings, _tolerance(settings))
        actor = f"auditor {default_instance_id(settings.id)}"
        self._convictions = Convictions(bus, settings.model, actor, settings.frozen)
        self._queue: deque[AuditSample] = deque(maxlen=MAX_QUEUED)
        self._arrived = asyncio.Event()
        self._budget = CpuBudget(settings.max_cpu_share * (os.cpu_count() or 1), BURST_SECONDS, time.monotonic())
        self._loader: VersionLoader
        self._reference: ReferenceModel
        self._num_tokens = self._num_skipped = 0
        self._problem = ""
        self._is_ready = False

    async def run(self, stop: asyncio.Event) -> None:
        """Audit until asked to stop."""
        settings, name = self._settings, default_instance_id(self._settings.id)
        async with self._nodes, self._bus.heartbeat("auditor", name, self._describe) as heartbeat:
            self._reference = await self._make_reference()
            directory = settings.work_dir / "weights" / settings.model
            self._loader = VersionLoader(self._bus, settings.model, directory, self._reference, settings.frozen)
            # Read off the bus beside everybody else: a slow auditor holds up nobody.
            subscriptions = [
                await self._bus.nc.subscribe(subjects.rollout(mode), cb=self._on_batch) for mode in ("train", "eval")
            ]
            await self._convictions.refresh()
            self._is_ready = True
            await heartbeat.send_now()
            try:
                await first_completed(self._audit_loop(), self._watch_nodes(), stop.wait())
            finally:
                if self._bus.nc.is_connected:
                    for subscription in subscriptions:
                        await subscription.unsubscribe()

    async def _make_reference(self) -> ReferenceModel:
        settings = self._settings
        make = partial(ReferenceModel, settings.model_path, settings.device, settings.cpu_threads)
        try:
            return await asyncio.to_thread(make, has_weights=settings.frozen)
        except OSError as error:
            raise AuditorError(f"model_path: {shorten_line(str(error), 200)}") from error
        except Exception as error:  # a model's code may raise anything
            reason = f"{type(error).__name__}: {shorten_line(str(error), 200)}"
            raise AuditorError(
                f"model_path: {settings.model_path} is a model that transformers cannot compute for the auditor: "
                f"{reason}. Run without the auditor"
            ) from error

    async def _on_batch(self, message: Msg) -> None:
        _, _, rest = (message.headers or {}).get(subjects.MSG_ID_HEADER, "").partition(":")
        if not self._draw.wants(rest.rpartition(":")[0]):
            return
        try:
            batches = self._draw.add(decode(SpanBatch, message.data))
            samples = build_samples(batches, self._settings.kv_cache_on_swap) if batches else []
        except (DecodeError, ValueError) as error:
            log.debug("a rollout is not audited: %s", error)
            return
        except Exception as error:  # any error: the next message is still read
            count_fault("a rollout is not audited", error)
            return
        for sample in samples:
            if sample.model == self._settings.model:
                self._num_skipped += len(self._queue) == MAX_QUEUED
                self._queue.append(sample)
        self._arrived.set()

    async def _audit_loop(self) -> None:
        while True:
            self._arrived.clear()
            if not self._queue:
                await self._arrived.wait()
                continue
            await asyncio.sleep(self._budget.seconds_to_wait(time.monotonic()))
            sample = self._next_sample()
            try:
                await self._audit(sample)
                self._problem = ""
            except (BusError, NatsError, OSError, ValueError) as error:
                self._num_skipped += 1
                self._problem = f"rollout {sample.rollout_id} is not audited: {error}"
                log.warning("%s", self._problem)
            except Exception as error:
                self._num_skipped += 1
                count_fault(f"rollout {sample.rollout_id} is not audited", error)

    def _next_sample(self) -> AuditSample:
        """Take the oldest sample of the loaded version, else the oldest of all."""
        sample = next((sample for sample in self._queue if self._loader.is_loaded(sample.version)), self._queue[0])
        self._queue.remove(sample)
        return sample

    async def _audit(self, sample: AuditSample) -> None:
        if self._convictions.applies_to(sample.engine_id, sample.version):
            return
        tokens = await self._recompute(sample)
        finding = self._judge.add(sample.engine_id, sample.version, tokens)
        self._draw.suspects = self._judge.suspects()
        self._num_tokens += len(tokens.differences)
        metrics.audited_tokens.inc(len(tokens.differences))
        if self._judge.is_guilty(finding):
            await self._convictions.add(sample.engine_id, sample.version, finding)
            self._judge.forget(sample.engine_id)
        await self._publish_audit(sample, tokens, finding)

    async def _recompute(self, sample: AuditSample) -> AuditedTokens:
        """Compare with the loaded version of this number, else with all candidates; the best match counts."""
        results = []
        if self._loader.is_loaded(sample.version):
            with self._budgeted():
                results.append(await asyncio.to_thread(self._reference.audit, sample))
        if not results or self._num_differing(results[0]):
            for manifest in await self._loader.candidates(sample.version):
                with self._budgeted():
                    await self._loader.load(manifest)
                    results.append(await asyncio.to_thread(self._reference.audit, sample))
        return min(results, key=self._num_differing)

    @contextmanager
    def _budgeted(self) -> Iterator[None]:
        """Count the CPU time of this process while the block runs."""
        started_at = time.process_time()
        try:
            yield
        finally:
            self._budget.spend(time.process_time() - started_at, time.monotonic())

    def _num_differing(self, tokens: AuditedTokens) -> int:
        return int((~(np.abs(tokens.differences) <= self._judge.tolerance)).sum())

    async def _publish_audit(self, sample: AuditSample, tokens: AuditedTokens, finding: Finding) -> None:
        differences = np.abs(tokens.differences)
        audit = RolloutAudit(
            run_id=sample.run_id,
            rollout_id=sample.rollout_id,
            execution_id=sample.execution_id,
            call=sample.call,
            model=sample.model,
            engine_id=sample.engine_id,
            version=sample.version,
            num_tokens=len(differences),
            num_differing=self._num_differing(tokens),
            mean_difference=float(differences.mean()),
            max_difference=float(differences.max()),
            tolerance=self._judge.tolerance,
            evidence=finding.log_evidence,
            audited_at_ns=time.time_ns(),
        )
        msg_id = ids.audit_msg_id(sample.execution_id, sample.call, sample.engine_id, sample.version)
        await self._bus.publish(subjects.ROLLOUT_AUDITED, audit, msg_id=msg_id)

    async def _watch_nodes(self) -> None:
        """Follow which engines serve which versions; an alert ends with its engine."""
        while True:
            await self._nodes.wait_for_change()
            nodes = [beat for beat in self._nodes.members() if beat.model == self._settings.model]
            samplers = [sampler for beat in nodes for sampler in samplers_of(beat)]
            self._draw.expect(samplers)
            await self._convictions.resolve_alerts({engine_id for engine_id, _ in samplers})

    def _describe(self) -> dict[str, Any]:
        status: dict[str, Any] = {"tokens": self._num_tokens, "skipped": self._num_skipped}
        if num_verdicts := self._convictions.num_verdicts:
            status["verdicts"] = num_verdicts
        if self._problem:
            status["problem"] = shorten_line(self._problem, 200)
        if self._convictions.alert:
            status["alert"] = self._convictions.alert
        return {
            "state": "auditing" if self._is_ready else "starting",
            "model": self._settings.model,
            "status": status,
        }


def samplers_of(node: Heartbeat) -> list[Sampler]:
    """List the engine of a node with each version that it serves. Pure."""
    engine_id, versions = node.status.get("engine_id"), node.status.get("versions", [node.version])
    if not isinstance(engine_id, str) or not isinstance(versions, list):
        return []
    return [(engine_id, version) for version in versions if isinstance(version, int)]


def _tolerance(settings: AuditorSettings) -> float:
    """Choose the tolerance, in nats."""
    if settings.tolerance is not None:
        return settings.tolerance
    dtype = settings.engine_dtype
    if dtype == "auto":
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(settings.model_path)
        dtype = str(config.get_text_config().dtype).removeprefix("torch.")
    return TOLERANCES.get(dtype, DEFAULT_TOLERANCE)
