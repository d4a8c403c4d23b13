"""The wire for other languages: tasks published and rollouts read by Node.js, with nothing of ours."""

import asyncio
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lightningbus.bus.client import Bus
from tests.runners.conftest import running
from tests.store.conftest import Start

needs_node = pytest.mark.skipif(
    shutil.which("node") is None or shutil.which("npm") is None, reason="node and npm are not installed"
)


async def run_node(script: str, folder: Path, *arguments: str, stdin: str = "", **variables: str) -> str:
    """Standard output of a script of the example."""
    process = await asyncio.create_subprocess_exec(
        *("node", script, *arguments),
        cwd=folder,
        env={**os.environ, **variables},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    stdout, stderr = await process.communicate(stdin.encode())
    assert process.returncode == 0, stderr.decode()
    return stdout.decode()


@needs_node
async def test_a_node_publisher_and_a_node_reader_need_no_package_of_ours(
    bus: Bus, nats_url: str, start_store: Start, environment: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = environment("wire_node")
    (tmp_path / "halves.py").write_text("def solve(task):\n    return task['n'] / 2\n")
    store = await asyncio.to_thread(start_store, nats_url)
    lines = "".join(json.dumps({"id": f"n{number}", "input": {"n": number}}) + "\n" for number in (1, 2))
    printed = await run_node("publish.js", folder, "default", "from-node", stdin=lines, NATS_URL=nats_url)
    assert printed.splitlines() == ["n1 is message 1 of TASKS", "n2 is message 2 of TASKS"]
    again = await run_node("publish.js", folder, "default", "from-node", stdin=lines, NATS_URL=nats_url)
    assert again.splitlines() == ["n1 was there already", "n2 was there already"]

    async with running(bus, entrypoint="halves:solve", working_dir=tmp_path):
        await asyncio.to_thread(store.until, "SELECT count() FROM rollouts WHERE run_id = 'from-node'", 2)
        await asyncio.to_thread(store.until, "SELECT count() FROM tasks WHERE run_id = 'from-node'", 2)
    address = store.url.split("@")[-1]
    rows = await run_node("read.js", folder, "from-node", CLICKHOUSE_URL=f"http://{address.removeprefix('http://')}")
    assert [json.loads(row) for row in rows.splitlines()] == [
        {"task_id": f"n{number}", "input": f'{{"n":{number}}}', "outcome": "ok", "reward": number / 2}
        for number in (1, 2)
    ]
    assert store.fetch_value("SELECT count() FROM check_unfinished_rollouts") == 0
