"""The supervisor with real children: restart, giving up, stopping in order."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from bus import Bus
from lightningbus.roles import TRY_AGAIN, UserError
from lightningbus.rundir import Endpoints, RunDirectory
from lightningbus.supervisor import Child, Restarts, Supervisor
from runners.settings import RunnerSettings

AGENTS = Path(__file__).resolve().parents[1] / "agents"


def runner(**changes: object) -> Child:
    fields = {"agent": "plain:asks", "path": AGENTS, "concurrency": 1, "id": "one", **changes}
    return Child("runner-0", "runner", RunnerSettings.model_validate(fields))


async def alive(bus: Bus, after: int = 0) -> None:
    """Wait until a runner takes tasks that has said so after a moment, in Unix nanoseconds."""
    async with bus.fleet("runner") as fleet, asyncio.timeout(60):
        while not any(beat.state == "running" and beat.sent_ns > after for beat in fleet.members()):
            await fleet.changed()


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
    async with asyncio.timeout(30):
        while supervisor.pids().get("runner-0", first) == first:
            await asyncio.sleep(0.05)
    second = supervisor.pids()["runner-0"]
    await supervisor.stop_all()
    assert supervisor.pids() == {}
    assert not Path(f"/proc/{second}").exists()


async def test_a_child_that_cannot_start_is_given_up_with_its_last_words(
    bus: Bus, nats_url: str, tmp_path: Path
) -> None:
    supervisor = Supervisor(RunDirectory(tmp_path / "run").create(), nats_url)
    await supervisor.start(runner(agent="plain:nothing"))
    async with asyncio.timeout(60):
        with pytest.raises(UserError, match=r"runner-0 ended with 2: .*has no attribute 'nothing'.*log: "):
            await supervisor.any_failure()
    await supervisor.stop_all()


def test_a_child_that_dies_young_is_given_up_and_one_that_had_settled_or_lost_the_bus_is_not() -> None:
    young, settled, cut_off = Restarts(), Restarts(), Restarts()
    assert [young.after(1, 0.5) for _ in range(6)] == [0.5, 1.0, 2.0, 4.0, 8.0, None]
    assert [settled.after(-9, 60.0) for _ in range(20)] == [0.5] * 20
    assert [cut_off.after(TRY_AGAIN, 0.5) for _ in range(20)][-1] == 15.0
    assert Restarts().after(2, 60.0) is None, "it said itself that it cannot go on"


def test_a_fresh_run_moves_the_earlier_one_aside_and_says_where_its_servers_are(tmp_path: Path) -> None:
    earlier = RunDirectory(tmp_path / "demo").create()
    (earlier.path / "summary.json").write_text("{}")
    with RunDirectory(tmp_path / "demo").locked(fresh=True) as fresh:
        assert not (fresh.path / "summary.json").exists()
        assert [path.name for path in tmp_path.glob("demo-*/summary.json")] == ["summary.json"]
        assert fresh.endpoints() is None
        fresh.write_endpoints(Endpoints(os.getpid(), "nats://127.0.0.1:1"))
        latest = RunDirectory.latest(tmp_path)
        assert latest is not None and latest.endpoints() == fresh.endpoints()
        fresh.write_endpoints(Endpoints(2**22 + 1, "nats://127.0.0.1:1"))
        assert fresh.endpoints() is None, "of a process that is gone"
