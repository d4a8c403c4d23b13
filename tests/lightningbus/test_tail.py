"""``lightningbus rollouts tail``: attempts as they end, off a real bus."""

import asyncio
import json
import sys

from lightningbus.bus.client import Bus
from lightningbus.schemas import subjects
from tests.factories import batches
from tests.polling import HANG_SECONDS


async def start_tail(url: str, *arguments: str) -> asyncio.subprocess.Process:
    """Start the command, and wait until it listens."""
    command = [sys.executable, "-m", "lightningbus", "rollouts", "tail", "--bus", url, *arguments]
    pipes = {"stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE}
    tail = await asyncio.create_subprocess_exec(*command, **pipes)
    assert tail.stderr is not None
    async with asyncio.timeout(HANG_SECONDS):
        while b"following" not in await tail.stderr.readline():
            assert tail.returncode is None
    return tail


async def end_rollout(bus: Bus, task: str, run: str) -> None:
    for part in batches(task, 0, reward=0.5, run=run):
        for turn in range(2):  # a publisher that heard no acknowledgement sends again
            await bus.publish(subjects.rollout("train"), part, msg_id=f"{task}:{part.sequence}:{turn}")


async def test_attempts_are_printed_as_they_end(bus: Bus, nats_url: str) -> None:
    tail = await start_tail(nats_url, "--run", "mine", "--json", "-n", "2")
    async with asyncio.timeout(HANG_SECONDS):
        for task, run in (("a", "mine"), ("b", "other"), ("c", "mine")):
            await end_rollout(bus, task, run)
        out, _ = await tail.communicate()
    assert tail.returncode == 0
    texts = [json.loads(line) for line in out.splitlines()]
    assert [(item["rollout"], item["outcome"], item["reward"], item["seconds"]) for item in texts] == [
        ("a.0", "ok", 0.5, 1.0),
        ("c.0", "ok", 0.5, 1.0),
    ]


async def test_a_reader_that_has_read_enough_ends_it_in_order(bus: Bus, nats_url: str) -> None:
    """The reader closes its end of the pipe, as ``| head -1`` does."""
    tail = await start_tail(nats_url)
    assert tail.stdout is not None and tail.stderr is not None
    async with asyncio.timeout(HANG_SECONDS):
        await end_rollout(bus, "a", "mine")
        assert b"a.0" in await tail.stdout.readline()
        tail._transport.get_pipe_transport(1).close()  # type: ignore[attr-defined]
        await end_rollout(bus, "b", "mine")
        assert (await tail.stderr.read(), await tail.wait()) == (b"", 0)
