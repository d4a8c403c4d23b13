"""``python -m tests.serving_faults``: switches one fault after the other on, and measures when the auditor finds it.

Real vLLM, a real runner and real agents; new weights every few seconds. After each verdict the fault is switched off,
and the node's next engine has to pass. Results go to ``benchmarks/results/audit.json``.
"""

import argparse
import asyncio
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil

from lightningbus.auditor.settings import AuditorSettings
from lightningbus.bus.client import Bus
from lightningbus.bus.weights.audit_log import AuditLog
from lightningbus.common.aio import cancel_and_wait
from lightningbus.common.processes import procfs
from lightningbus.common.processes.subprocesses import spawn, terminate
from lightningbus.inference.settings import AdapterSettings, InferenceSettings
from lightningbus.run.evaluation.publishing import publish_all
from lightningbus.run.evaluation.request import expand_samples
from lightningbus.run.processes.stack import LocalStack, start_stack
from lightningbus.run.processes.supervisor import ChildSpec
from lightningbus.run.run_directory.directory import RunDirectory
from lightningbus.run.run_directory.discovery import BUS_VARIABLE
from lightningbus.run.settings.run_file import BusSettings
from lightningbus.runners.settings import RunnerSettings
from lightningbus.schemas.audits.events import AuditVerdict
from lightningbus.store.clickhouse.client import connect, query_row
from lightningbus.store.settings import StoreSettings
from lightningbus.tasks.task_loading import TaskInput
from tests.serving_faults.catalogue import FAULTS, SWITCH_VARIABLE, Fault
from tests.serving_faults.engine import FIRST
from tests.serving_faults.versions import VersionPublisher

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parents[1] / "benchmarks" / "results" / "audit.json"
SAMPLING = {"temperature": 0.7, "top_p": 0.8}
SLOTS, NUM_QUESTIONS = 16, 16
VERSION_SECONDS, HEALTHY_SECONDS, PATIENCE_SECONDS = 3.0, 10.0, 180.0
NODE = "node"


class System:
    """Everything but a learner: versions come from here."""

    def __init__(self, at: LocalStack, model: Path, weights: str, agent: str) -> None:
        """``weights`` is the kind of versions, as of `Fault`; ``agent`` a function of our agent."""
        self._at, self._model, self._weights, self._agent = at, model, weights, agent
        self.switch = at.directory.path / "fault"
        self.log = AuditLog(at.bus, "policy")
        self._node: asyncio.subprocess.Process

    @asynccontextmanager
    async def running(self, auditor: AuditorSettings) -> AsyncIterator["System"]:
        """Start every process, and keep versions and tasks coming while the block runs."""
        path, supervisor = self._at.directory.path, self._at.supervisor
        async with Bus.connect(self._at.url, credentials=self._at.find_credentials("learner")) as learner:
            self._versions = VersionPublisher(self._at.bus, learner, self._model, path, self._weights)
            await self._versions.publish()
            store = StoreSettings(data_dir=self._at.directory.store, http_port=0, id="store")
            await supervisor.start(ChildSpec("store", "store", store))
            runner = RunnerSettings(entrypoint=f"agent:{self._agent}", working_dir=HERE, concurrency=SLOTS, id="runner")
            await supervisor.start(ChildSpec("runner", "runner", runner))
            await self._start_node()
            await supervisor.start(ChildSpec("auditor", "auditor", auditor))
            await self._at.wait_for_member(lambda beat: beat.state == "ready", "ready node", 300)
            await self._at.wait_for_member(lambda beat: beat.state == "auditing", "auditor", 120)
            member = await self._at.wait_for_member(lambda beat: beat.role == "store", "store", 60)
            self.sql = await asyncio.to_thread(connect, member.address)
            background = [asyncio.create_task(self._publish_tasks()), asyncio.create_task(self._publish_versions())]
            try:
                yield self
            finally:
                await cancel_and_wait(*background)
                await terminate(self._node, 20)

    async def _start_node(self) -> None:
        path = self._at.directory.path
        settings = InferenceSettings(
            model_path=self._model, id=NODE, dtype="float32", max_model_len=128, max_num_seqs=32, cpu_threads=1,
            work_dir=path / "node", vllm_args=["--block-size", "32"],
            lora=AdapterSettings(rank=8) if self._weights == "adapters" else None,
            inference_api_key_file=self._at.keys.inference_api_key,
        )  # fmt: skip
        file = path / "node.json"
        file.write_text(settings.model_dump_json())
        environment = os.environ | self._at.keys.environment() | {BUS_VARIABLE: self._at.url}
        environment |= {SWITCH_VARIABLE: str(self.switch), "PYTHONPATH": f"{HERE / 'startup'}:{HERE.parents[1]}"}
        with (path / "logs" / "node.log").open("ab") as out:
            self._node = await spawn(
                sys.executable, "-P", str(HERE / "node.py"), "inference", "--settings", str(file),
                stdout=out, stderr=asyncio.subprocess.STDOUT, env=environment,
            )  # fmt: skip

    async def _publish_tasks(self) -> None:
        """Questions that come again and again, so that prefixes are found in the cache."""
        count = 0
        while True:
            problems = [TaskInput(f"q{number}-{count}", {"number": number}) for number in range(NUM_QUESTIONS)]
            fields: dict[str, Any] = {"run_id": "audit", "agent": "default", "mode": "eval", "deadline": 120.0}
            tasks = expand_samples(problems, 4, **fields, sampling_params=SAMPLING)
            await publish_all(self._at.bus, tasks, timeout=300, on_done=lambda: None)
            count += 1
            while (await self._at.bus.stream_state("TASKS")).num_messages > 4 * NUM_QUESTIONS:
                await self._at.fleet.wait_for_change()

    async def _publish_versions(self) -> None:
        while True:
            await asyncio.sleep(VERSION_SECONDS)
            await self._versions.publish()

    async def inject(self, fault: Fault) -> dict[str, Any]:
        """Switch a fault on until it is found, or for `PATIENCE_SECONDS`; then off, until the next engine serves."""
        num_before, tokens_before = len((await self.log.refresh()).verdicts), await self.num_tokens()
        first = self._at.directory.path / "node" / FIRST
        first.write_bytes((self._model / "model.safetensors").read_bytes())
        self.switch.write_text(fault.name)
        started_at = time.monotonic()
        if fault.restarts_engine:
            self._kill_engine()
        verdict = await self._wait_for_verdict(num_before)
        seconds = time.monotonic() - started_at
        self.switch.unlink()
        if verdict is None:
            self._kill_engine()
        await self._at.wait_for_member(lambda beat: beat.role == "inference" and beat.state != "ready", "stop", 60)
        await self._at.wait_for_member(lambda beat: beat.role == "inference" and beat.state == "ready", "start", 180)
        measured = {"seconds": round(seconds, 1), "tokens": await self.num_tokens() - tokens_before}
        return {
            "fault": fault.name, "met_in": fault.met_in, "found": verdict is not None,
            "reason": verdict.reason if verdict is not None else "", **measured,
        }  # fmt: skip

    async def num_tokens(self) -> int:
        """Tokens audited so far."""
        return next(int(beat.status["tokens"]) for beat in self._at.fleet.members() if beat.role == "auditor")

    def cpu_share(self) -> float:
        """CPU time of the auditor by that of the machine, since the auditor was ready."""
        seconds = self._cpu_seconds() - self._cpu_before
        return seconds / ((time.monotonic() - self._began_at) * (os.cpu_count() or 1))

    def _cpu_seconds(self) -> float:
        times = psutil.Process(self._at.supervisor.pids()["auditor"]).cpu_times()
        return float(times.user + times.system)

    def begin_cpu_count(self) -> None:
        """Count the auditor's CPU time from here on."""
        self._cpu_before = self._cpu_seconds()
        self._began_at = time.monotonic()

    async def _wait_for_verdict(self, num_before: int) -> AuditVerdict | None:
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while len(verdicts := (await self.log.refresh()).verdicts) <= num_before:
                    await self._at.fleet.wait_for_change()
                return verdicts[num_before]
        except TimeoutError:
            return None

    def _kill_engine(self) -> None:
        for pid in procfs.children_of(self._node.pid):
            os.kill(pid, signal.SIGKILL)


@asynccontextmanager
async def system(
    model: Path, work: Path, kind: str, auditor: AuditorSettings, agent: str = "solve"
) -> AsyncIterator[System]:
    """A run directory, a bus and all processes while the block runs."""
    with RunDirectory(work / kind.replace(" ", "-")).lock(fresh=True) as directory:
        settings = auditor.model_copy(update={"work_dir": directory.path / "auditor"})
        async with (
            start_stack(directory, BusSettings(port=0), f"serving faults, {kind}") as at,
            System(at, model, kind, agent).running(settings) as started,
        ):
            yield started


async def measure(model: Path, work: Path, faults: Sequence[Fault]) -> list[dict[str, Any]]:
    """Faults by the kind of versions they need."""
    results: list[dict[str, Any]] = []
    auditor = AuditorSettings(model_path=model, id="auditor", engine_dtype="float32")
    for kind in dict.fromkeys(fault.weights for fault in faults):
        async with system(model, work, kind, auditor) as started:
            started.begin_cpu_count()
            await asyncio.sleep(HEALTHY_SECONDS)  # a sound engine first
            assert not (await started.log.refresh()).verdicts, "a sound engine fails the audit"
            for fault in faults:
                if fault.weights == kind:
                    results.append(await started.inject(fault))
                    print(json.dumps(results[-1]), file=sys.stderr, flush=True)
            share = round(started.cpu_share(), 4)
            (trained,) = await asyncio.to_thread(
                query_row, started.sql, "SELECT count() FROM check_quarantined_training"
            )
            results = [
                result | {"cpu_share": share} if result["fault"] in _names(faults, kind) else result
                for result in results
            ]
            assert trained == 0
    return results


def _names(faults: Sequence[Fault], kind: str) -> set[str]:
    return {fault.name for fault in faults if fault.weights == kind}


async def measure_soundness(model: Path, work: Path, tokens: int) -> dict[str, Any]:
    """Audit everything of a sound engine until so many tokens are audited."""
    auditor = AuditorSettings(model_path=model, id="auditor", engine_dtype="float32", share=1.0, max_cpu_share=1.0)
    async with system(model, work, "full", auditor, "solve_at_length") as started:
        while (count := await started.num_tokens()) < tokens:
            await asyncio.sleep(1)
        return {"tokens": count, "false_alarms": len((await started.log.refresh()).verdicts)}


def make_model(path: Path, seed: int) -> None:
    """The small model of the calculator example."""
    if (path / "model.safetensors").exists():
        return
    import subprocess

    script = HERE.parents[1] / "examples" / "calculator" / "model.py"
    command = [sys.executable, str(script), "--out", str(path), "--seed", str(seed), "--steps", "200"]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)


def table(results: Sequence[dict[str, Any]]) -> str:
    """One line per fault."""
    lines = ["| fault | met in | found | seconds | audited tokens |", "|---|---|---|---|---|"]
    lines += [
        f"| {row['fault']} | {row['met_in']} | {'yes' if row['found'] else 'no'} | {row['seconds']} | {row['tokens']} |"
        for row in results
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", help="faults by name")
    parser.add_argument("--work", type=Path, default=Path("runs/serving-faults"))
    parser.add_argument("--sound-tokens", type=int, help="audit so many tokens of a sound engine instead")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    work = options.work.resolve()
    model = work / f"model-{options.seed}"
    make_model(model, options.seed)
    if options.sound_tokens:
        print(json.dumps(asyncio.run(measure_soundness(model, work, options.sound_tokens)) | {"seed": options.seed}))
        return
    faults = [fault for fault in FAULTS if not options.only or fault.name in options.only]
    results = asyncio.run(measure(model, work, faults))
    options.results.write_text(json.dumps(results, indent=1) + "\n")
    print(table(results))
    print(f"median {statistics.median(row['seconds'] for row in results)} s")


if __name__ == "__main__":
    main()
