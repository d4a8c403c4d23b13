"""``lightningbus rollouts tail``: attempts as they end, off a real bus."""

import asyncio
import json
import sys

from lightningbus.bus.client import Bus
from lightningbus.schemas import subjects
from tests.factories import batches
from tests.polling import HANG_SECONDS


async def test_attempts_are_printed_as_they_end(bus: Bus, nats_url: str) -> None:
    command = [
        sys.executable,
        "-m",
        "lightningbus",
        "rollouts",
        "tail",
        "--bus",
        nats_url,
        "--run",
        "mine",
        "--json",
        "-n",
        "2",
    ]
    pipes = {"stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE}
    tail = await asyncio.create_subprocess_exec(*command, **pipes)
    assert tail.stderr is not None
    async with asyncio.timeout(HANG_SECONDS):
        while b"following" not in await tail.stderr.readline():
            assert tail.returncode is None
        for task, run in (("a", "mine"), ("b", "other"), ("c", "mine")):
            for part in batches(task, 0, reward=0.5, run=run):
                for turn in range(2):  # a publisher that heard no acknowledgement sends again
                    name = f"{task}:{part.sequence}:{turn}"
                    await bus.publish(subjects.rollout("train"), part, msg_id=name)
        out, _ = await tail.communicate()
    assert tail.returncode == 0
    texts = [json.loads(line) for line in out.splitlines()]
    assert [(item["rollout"], item["outcome"], item["reward"], item["seconds"]) for item in texts] == [
        ("a.0", "ok", 0.5, 1.0),
        ("c.0", "ok", 0.5, 1.0),
    ]
