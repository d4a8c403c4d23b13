"""Real store processes: ``lightningbus store`` with the embedded engine, on free ports."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import clickhouse_connect
import pytest
from clickhouse_connect.driver.client import Client

from lightningbus.store.clickhouse import migrations
from tests.examples.conftest import environment as environment
from tests.polling import HANG_SECONDS, until


@dataclass
class StoreProcess:
    """A running store and a stock client on it."""

    process: "subprocess.Popen[str]"
    url: str
    sql: Client

    def fetch_value(self, sql: str) -> Any:
        """First value of the first row."""
        return self.sql.query(sql).result_rows[0][0]

    def until(self, sql: str, expected: Any) -> None:
        """Wait for a query's first value."""
        until(lambda: self.fetch_value(sql), expected)

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait()


Start = Callable[..., StoreProcess]


@contextmanager
def full_disk(store: StoreProcess, directory: Path) -> Iterator[None]:
    """The disk of a store that was started with ``disk_mib`` has no byte left while the block runs."""
    filler = Path(f"/proc/{store.process.pid}/root{directory}/filler")
    try:
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(65536))
        yield
    finally:
        filler.unlink()


@pytest.fixture
def start_store(tmp_path: Path) -> Iterator[Start]:
    """Starts ``lightningbus store`` on a bus; always on the same directory. Takes more of its settings by name.

    ``disk_mib`` gives the directory a disk of its own, of so many MiB; see `full_disk`.
    """
    running: list[subprocess.Popen[str]] = []

    def start(bus: str, disk_mib: int = 0, **settings: Any) -> StoreProcess:
        (tmp_path / "store.json").write_text(json.dumps(settings))
        command = [sys.executable, "-m", "lightningbus", "store", "--bus", bus, "--http-port", "0"]
        if disk_mib:
            (tmp_path / "store").mkdir(exist_ok=True)
            mount = f'mount -t tmpfs -o size={disk_mib}m tmpfs {tmp_path / "store"} && exec "$@"'
            command = ["unshare", "-rm", "sh", "-c", mount, "sh", *command]
        command += ["--settings", str(tmp_path / "store.json")]
        process = subprocess.Popen([*command, "--data-dir", str(tmp_path / "store")], stderr=subprocess.PIPE, text=True)
        running.append(process)
        assert process.stderr is not None
        text = ""
        for line in process.stderr:
            text += line
            if "SQL at " in line:
                url = line.split("SQL at ")[1].split(",")[0]
                return StoreProcess(process, url, client(url))
        raise AssertionError(text)

    yield start
    for process in running:
        at_work = process.poll() is None
        process.terminate()
        _, answer = process.communicate(timeout=HANG_SECONDS)
        print(f"the store ended with {process.returncode}: {answer[-4000:]}")
        assert process.returncode == 0 or not at_work


SERVE = """
import asyncio, sys
from pathlib import Path
from lightningbus.store.embedded.serving import serve_embedded

async def main():
    async with serve_embedded(Path(sys.argv[1])) as (_, url):
        print(url, flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""


@contextmanager
def serving(path: Path) -> Iterator[StoreProcess]:
    """An embedded engine behind its HTTP interface, as its writer and without a bus: it has a process of its own."""
    command = [sys.executable, "-c", SERVE, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdin is not None
        url = process.stdout.readline().strip()
        client(url, "default").command("CREATE DATABASE IF NOT EXISTS lightningbus")
        yield StoreProcess(process, url, client(url))
        process.stdin.close()


@contextmanager
def prepared(path: Path) -> Iterator[StoreProcess]:
    """`serving`, with all tables and views."""
    with serving(path) as store:
        migrations.migrate(client(store.url, "default"), "lightningbus")
        migrations.create_views(store.sql, "lightningbus")
        yield store


def client(url: str, database: str = "lightningbus") -> Client:
    """The stock client, as any notebook would make it."""
    return clickhouse_connect.get_client(dsn=url, database=database, autogenerate_session_id=False)
