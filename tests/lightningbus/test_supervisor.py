"""The supervisor with real children: restart, giving up, stopping in order."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from nats.aio.msg import Msg

from lightningbus.bus.client import Bus
from lightningbus.common.backoff import RetryPolicy
from lightningbus.common.processes.subprocesses import kill_group, spawn
from lightningbus.inference.engine.vllm_command import has_gpu
from lightningbus.inference.settings import InferenceSettings
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.run.errors import UserError
from lightningbus.run.processes import members
from lightningbus.run.processes.process_liveness import ProcessLiveness
from lightningbus.run.processes.role_process import EX_TEMPFAIL
from lightningbus.run.processes.stack import start_stack
from lightningbus.run.processes.supervisor import ChildSpec, RestartPolicy, Supervisor, choose_niceness
from lightningbus.run.run_directory.directory import Endpoints, RunDirectory
from lightningbus.run.settings.run_file import BusSettings
from lightningbus.runners.settings import RunnerSettings
from lightningbus.schemas import subjects
from lightningbus.schemas.codec import decode
from lightningbus.schemas.fleet import Alert
from lightningbus.store.settings import StoreSettings
from tests.lightningbus.test_cli import run
from tests.pausing import paused
from tests.polling import HANG_SECONDS

AGENTS = Path(__file__).resolve().parents[1] / "agents"


def runner(**changes: object) -> ChildSpec:
    fields = {"entrypoint": "plain:asks", "working_dir": AGENTS, "concurrency": 1, "id": "one", **changes}
    return ChildSpec("runner-0", "runner", RunnerSettings.model_validate(fields))


async def alive(bus: Bus, after: int = 0) -> None:
    """Wait until a runner takes tasks that has said so after a moment, in Unix nanoseconds."""
    async with bus.fleet("runner") as fleet, asyncio.timeout(HANG_SECONDS):
        while not any(beat.state == "running" and beat.sent_at_ns > after for beat in fleet.members()):
            await fleet.wait_for_change()


async def test_a_child_that_dies_is_started_again_and_stopped_at_the_end(
    bus: Bus, nats_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("bus", "runners", "schemas"):  # a user's directories, which are not our packages
        Path(name).mkdir()
    supervisor = Supervisor(RunDirectory(tmp_path / "run").create(), nats_url)
    await supervisor.start(runner())
    await alive(bus)
    first = supervisor.pids()["runner-0"]
    os.kill(first, signal.SIGKILL)
    async with asyncio.timeout(HANG_SECONDS):
        while supervisor.pids().get("runner-0", first) == first:
            await asyncio.sleep(0.05)
    second = supervisor.pids()["runner-0"]
    await supervisor.stop_all()
    assert supervisor.pids() == {}
    assert not Path(f"/proc/{second}").exists()


@pytest.mark.parametrize("is_late", [False, True])
async def test_a_child_is_started_again_with_other_settings(
    bus: Bus, nats_url: str, tmp_path: Path, is_late: bool
) -> None:
    """A signal makes it end by itself. The new settings count too where it was killed before it had the signal."""
    program = tmp_path / "program"
    program.write_text(
        f"#!{sys.executable}\nimport json, pathlib, signal, sys\n"
        "path = pathlib.Path(sys.argv[-1])\n"
        "signal.signal(signal.SIGUSR1, lambda *_: sys.exit(0))\n"
        f"pathlib.Path({str(tmp_path)!r}, json.loads(path.read_text())['id']).touch()\n"
        "while True: signal.pause()\n"
    )
    program.chmod(0o700)
    supervisor = Supervisor(RunDirectory(tmp_path / "run").create(), nats_url)

    async def until_started(id: str) -> None:
        async with asyncio.timeout(HANG_SECONDS):
            while not (tmp_path / id).exists():
                await asyncio.sleep(0.02)

    def learner(id: str) -> ChildSpec:
        return ChildSpec("learner", "learner", LearnerSettings(model_path=tmp_path, python_executable=program, id=id))

    await supervisor.start(learner("one"))
    await until_started("one")
    if is_late:
        os.kill(supervisor.pids()["learner"], signal.SIGKILL)
    await supervisor.restart(learner("two"))
    await until_started("two")
    await supervisor.restart(ChildSpec("learner-1", "learner", learner("one").settings))  # there is none
    assert supervisor.expected() == {"learner": "learner"}
    os.kill(supervisor.pids()["learner"], signal.SIGUSR1)  # not by the supervisor: its work is done
    async with asyncio.timeout(HANG_SECONDS):
        await supervisor.wait_finished("learner")
    await supervisor.restart(learner("three"))
    await supervisor.stop_all()
    assert not (tmp_path / "three").exists()


async def test_a_child_that_cannot_start_is_given_up_with_its_last_words(
    bus: Bus, nats_url: str, tmp_path: Path
) -> None:
    supervisor = Supervisor(RunDirectory(tmp_path / "run").create(), nats_url)
    await supervisor.start(runner(entrypoint="plain:nothing"))
    async with asyncio.timeout(HANG_SECONDS):
        with pytest.raises(UserError, match=r"runner-0 ended with 2: .*has no attribute 'nothing'.*log: "):
            await supervisor.wait_for_failure()
    await supervisor.stop_all()


async def test_a_role_runs_in_the_interpreter_that_its_settings_name(bus: Bus, nats_url: str, tmp_path: Path) -> None:
    """As any other child: its last words are known."""
    interpreter, mark = tmp_path / "python", tmp_path / "arguments"
    interpreter.write_text(f'#!/bin/sh\n(echo "$@"; nice) > {mark}\nexec {sys.executable} "$@"\n')
    interpreter.chmod(0o700)
    supervisor = Supervisor(RunDirectory(tmp_path / "run").create(), nats_url)
    settings = InferenceSettings(model_path=tmp_path, python_executable=interpreter)
    await supervisor.start(ChildSpec("inference-0", "inference", settings))
    async with asyncio.timeout(HANG_SECONDS):
        with pytest.raises(UserError, match=r"inference-0 ended with 2: model_path: .* holds no model"):
            await supervisor.wait_for_failure()
    await supervisor.stop_all()
    command, niceness = mark.read_text().splitlines()
    assert command.startswith("-P -m lightningbus inference --settings ")
    assert int(niceness) == os.nice(0) + choose_niceness("inference", has_gpu())


async def test_an_interpreter_that_is_not_there_is_one_sentence(bus: Bus, nats_url: str, tmp_path: Path) -> None:
    supervisor = Supervisor(RunDirectory(tmp_path / "run").create(), nats_url)
    settings = LearnerSettings(model_path=tmp_path, python_executable=tmp_path / "python")
    with pytest.raises(UserError, match=r"learner: python_executable: .*/python cannot be started: No such file"):
        await supervisor.start(ChildSpec("learner", "learner", settings))
    await supervisor.stop_all()


def test_what_computes_on_the_processors_gives_way_to_all_else() -> None:
    roles = ("store", "runner", "grader", "learner", "inference", "auditor")
    assert [choose_niceness(role, has_gpu=False) for role in roles] == [0, 0, 0, 10, 10, 10]
    assert {choose_niceness(role, has_gpu=True) for role in roles} == {0}, "they feed the GPU"


def test_a_child_that_dies_young_is_given_up_and_one_that_had_settled_or_lost_the_bus_is_not() -> None:
    young, settled, cut_off, crashing = RestartPolicy(), RestartPolicy(), RestartPolicy(), RestartPolicy()
    assert [young.next_delay(1, 0.5) for _ in range(6)] == [0.5, 1.0, 2.0, 4.0, 8.0, None]
    assert [settled.next_delay(-9, 60.0) for _ in range(20)] == [0.5] * 20
    assert [cut_off.next_delay(EX_TEMPFAIL, 0.5) for _ in range(20)][-1] == 15.0
    assert [crashing.next_delay(1, 60.0) for _ in range(6)][-1] is None, "a loop, though each life loads a model first"
    assert RestartPolicy().next_delay(2, 60.0) is None, "it said itself that it cannot go on"


def test_a_fresh_run_moves_the_earlier_one_aside_and_says_where_its_servers_are(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    earlier = RunDirectory(tmp_path / "demo").create()
    (earlier.path / "summary.json").write_text("{}")
    with RunDirectory(tmp_path / "demo").lock(fresh=True) as fresh:
        assert not (fresh.path / "summary.json").exists()
        (aside,) = tmp_path.glob("demo-*/summary.json")
        assert f"run 'demo' was there already: its directory is {aside.parent} now" in caplog.text
        assert fresh.read_endpoints() is None
        fresh.write_endpoints(Endpoints(os.getpid(), "nats://127.0.0.1:1"))
        latest = RunDirectory.latest(tmp_path)
        assert latest is not None and latest.read_endpoints() == fresh.read_endpoints()
        fresh.write_endpoints(Endpoints(2**22 + 1, "nats://127.0.0.1:1"))
        assert fresh.read_endpoints() is None, "of a process that is gone"


def test_a_run_that_is_moved_aside_replaces_none(tmp_path: Path) -> None:
    """Two directories may have the same time, as copies have."""
    for name in ("first", "second"):
        run = RunDirectory(tmp_path / "demo").create()
        (run.path / f"{name}.json").write_text("{}")
        os.utime(run.path, (1e9, 1e9))
        with run.lock(fresh=True):
            pass
    assert len(list(tmp_path.glob("demo-*/first.json"))) == len(list(tmp_path.glob("demo-*/second.json"))) == 1


async def test_a_crash_loop_is_given_up_with_the_role_and_its_last_words(
    bus: Bus, nats_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightningbus.run.processes.supervisor.RESTART_POLICY", RetryPolicy(0.01, 0.01))
    monkeypatch.setattr("lightningbus.run.processes.supervisor.MAX_RESTARTS", 1)
    supervisor = Supervisor(RunDirectory(tmp_path / "run").create(), nats_url)
    await supervisor.start(runner())
    await alive(bus)
    first = supervisor.pids()["runner-0"]
    os.kill(first, signal.SIGSEGV)
    async with asyncio.timeout(HANG_SECONDS):
        while (second := supervisor.pids().get("runner-0", first)) == first:
            await asyncio.sleep(0.05)
        os.kill(second, signal.SIGSEGV)
        with pytest.raises(UserError, match=r"runner-0 ended with -11, the last of 2 starts: .+ \(log: "):
            await supervisor.wait_for_failure()
    await supervisor.stop_all()


async def test_a_silent_role_is_an_alert_of_the_supervisor_until_it_is_back(
    nats_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store and the learner cannot report their own absence."""
    monkeypatch.setattr("lightningbus.run.processes.process_liveness.ABSENT_SECONDS", 1.0)
    monkeypatch.setattr(
        "lightningbus.bus.fleet.heartbeats.INTERVAL_SECONDS", 0.1
    )  # many of them while the command listens
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LIGHTNINGBUS_BUS", raising=False)
    async with start_stack(
        RunDirectory(tmp_path / "runs" / "one").create(), BusSettings(url=nats_url), "test"
    ) as stack:
        alerts: asyncio.Queue[Alert] = asyncio.Queue()

        async def receive(message: Msg) -> None:
            await alerts.put(decode(Alert, message.data))

        await stack.bus.nc.subscribe(subjects.ALERT, cb=receive)
        settings = StoreSettings(data_dir=tmp_path / "store", http_port=0, id="store")
        await stack.supervisor.start(ChildSpec("store", "store", settings))
        await stack.wait_for_member(lambda beat: beat.role == "store", "store", HANG_SECONDS)
        pid = stack.supervisor.pids()["store"]
        with paused(pid):
            alert = await asyncio.wait_for(alerts.get(), HANG_SECONDS)
            reason = f"store is gone: its process {pid} runs, but is silent"
            assert (alert.role, alert.reason, alert.resolved) == ("store", reason, False)
            done = await asyncio.to_thread(run, "status", "--bus", nats_url)
            assert f"ALERT  {reason}" in done.stdout and "expects store" in done.stdout
        alert = await asyncio.wait_for(alerts.get(), HANG_SECONDS)
        assert (alert.role, alert.resolved) == ("store", True)


WORKS_THEN_HANGS = """
import pathlib, sys, time
while time.process_time() < 5: pass
pathlib.Path(sys.argv[1]).touch()
time.sleep(3600)
"""


async def test_a_store_is_waited_for_while_its_process_works(
    bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is for a process that does nothing, however long a busy machine takes to start it."""
    monkeypatch.setattr(members, "STORE_SECONDS", 2.0)
    supervisor = Supervisor(RunDirectory(tmp_path / "run").create(), "nats://127.0.0.1:1")
    done = tmp_path / "done"
    process = await spawn(sys.executable, "-c", WORKS_THEN_HANGS, str(done))
    supervisor._processes["store"] = process
    try:
        with pytest.raises(UserError, match=r"no store within 2 s, and its process does nothing: see store\.log"):
            async with bus.fleet("store") as fleet:
                await members.wait_for_store(fleet, supervisor, Path("store.log"))
        assert done.exists()
    finally:
        await kill_group(process)


@pytest.mark.integration
@pytest.mark.parametrize(("limit", "clause"), [("4194304", "; memory is limited to 4.0 GiB here"), ("unlimited", "")])
def test_a_limit_of_memory_is_named(limit: str, clause: str) -> None:
    code = "from lightningbus.common.processes.memory_limit import describe_memory_limit as d; print(d())"
    shell = ["sh", "-c", f'ulimit -v {limit}; exec "$0" -c "$1"', sys.executable, code]
    done = subprocess.run(shell, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(clause) and bool(done.stdout.strip()) == bool(clause)


def test_an_expected_role_is_absent_once_it_has_been_silent_or_never_came() -> None:
    liveness = ProcessLiveness(start_seconds=300, absent_seconds=10)
    expected = {"store": 1, "learner": 2}
    assert liveness.find_absent(expected, {1}, 0) == {}
    assert liveness.find_absent(expected, {1}, 299) == {}
    assert liveness.find_absent(expected, {1}, 300) == {
        "learner": "learner has not come up: its process 2 runs, but is silent"
    }
    assert liveness.find_absent(expected, {2}, 309) == {}
    assert liveness.find_absent({"store": None, "learner": 2}, {2}, 310) == {
        "store": "store is gone: its process has ended"
    }
    assert liveness.find_absent({"store": 3, "learner": 2}, {2, 3}, 311) == {}
    assert liveness.find_absent({"learner": 2}, set(), 1000) == {
        "learner": "learner is gone: its process 2 runs, but is silent"
    }, "the store is done, and missed by nobody"
