"""One real run for all tests here: ``lightningbus up`` with a broker, ClickHouse, vLLM and two runners."""

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import clickhouse_connect
import pytest
import yaml
from clickhouse_connect.driver.client import Client

from lightningbus.bus.client import Bus
from lightningbus.bus.security.credentials import Credentials
from tests.otlp import Collector, collecting
from tests.polling import HANG_SECONDS, until

ROOT = Path(__file__).resolve().parents[2]
CALCULATOR = ROOT / "examples" / "calculator"
COMMAND = [sys.executable, "-m", "lightningbus"]
COLLECTORS_KEY = "of-the-collector-alone"
COMPILED = "compiled"
"""Where torch keeps what it compiles for vLLM."""


@dataclass(frozen=True)
class Loop:
    """A running ``up``, its addresses, and a client on its store."""

    directory: Path
    bus: str
    sql: Client
    process: "subprocess.Popen[str]"
    collector: Collector
    """Takes the roles' own traces."""
    access: Path
    """What the run's bus lets each role in by."""

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Bus]:
        """The run's bus, as admin."""
        async with Bus.connect(self.bus, name="test", credentials=Credentials.read(self.access, "admin")) as bus:
            yield bus

    @property
    def environment(self) -> dict[str, str]:
        """Of whoever is started beside it."""
        return environment(self.collector)

    def run(self, *arguments: object, check: bool = True) -> "subprocess.CompletedProcess[str]":
        """``lightningbus …`` in a terminal of its own, to its end."""
        done = subprocess.run(
            [*COMMAND, *map(str, arguments)],
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
            check=False,
        )
        assert not check or done.returncode == 0, done.stderr[-3000:]
        return done

    def start(self, *arguments: object) -> "subprocess.Popen[str]":
        """``lightningbus …`` in a terminal of its own."""
        command = [*COMMAND, *map(str, arguments)]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, cwd=self.directory, env=self.environment, stdout=pipe, stderr=pipe, text=True)

    def fetch_value(self, sql: str) -> Any:
        """First value of the first row."""
        return self.sql.query(sql).result_rows[0][0]

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """All rows."""
        return [tuple(row) for row in self.sql.query(sql).result_rows]

    def until(self, sql: str, expected: Any, seconds: float = 90) -> None:
        """Wait until a query's first value is what it should become; ClickHouse has no event to wait for."""
        until(lambda: self.fetch_value(sql), expected, seconds)


def write_tasks(path: Path, count: int) -> Path:
    """Problems as the example makes them."""
    script = [sys.executable, str(CALCULATOR / "problems.py"), "--train", str(count), "--heldout", "4"]
    subprocess.run([*script, "--out", str(path.parent)], check=True)
    (path.parent / "train.jsonl").rename(path)
    return path


def environment(collector: Collector) -> dict[str, str]:
    """Roles export their traces, soon."""
    fields = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "500"}
    return {**os.environ, **fields, "OTEL_EXPORTER_OTLP_HEADERS": f"x-key={COLLECTORS_KEY}"}


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    """An OTLP receiver."""
    with collecting() as built:
        yield built


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> Iterator[Loop]:
    """``lightningbus up``, ready to serve; stopped by Ctrl-C at the end, which must be clean."""
    directory = tmp_path_factory.mktemp("loop")
    make = [
        sys.executable,
        str(CALCULATOR / "model.py"),
        "--steps",
        "60",
        "--threads",
        "1",
        "--out",
        str(directory / "model"),
    ]
    subprocess.run(make, check=True, capture_output=True)
    runner = {"entrypoint": "agent:solve", "working_dir": str(CALCULATOR), "concurrency": 2}
    odd = {"working_dir": str(ROOT / "tests" / "agents"), "concurrency": 1, "drain_timeout_seconds": 1}
    misbehaving = ("raises", "hangs", "says_nothing", "wants_another_model")
    agents = (*misbehaving, "streams", "completes", "rewarded_by_span", "speaks_every_dialect")
    settings = {
        "name": "test",
        "bus": {"port": 0},
        "store": {"http_port": 0, "flush_interval_seconds": 0.1},
        "inference": [
            {
                "model_path": str(directory / "model"),
                "dtype": "float32",
                "max_model_len": 128,
                "max_num_seqs": 16,
                "cpu_threads": 1,
            }
        ],
        "runners": [runner, *({**odd, "entrypoint": f"odd:{name}", "agent_name": name} for name in agents)],
    }
    (directory / "run.yaml").write_text(yaml.safe_dump(settings))
    process = subprocess.Popen(
        [*COMMAND, "up", "-c", "run.yaml"],
        cwd=directory,
        env={**environment(collector), "TORCHINDUCTOR_CACHE_DIR": str(directory / COMPILED)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    text = ""
    for line in process.stderr:
        text += line
        if "running; Ctrl-C stops" in line:
            break
    else:
        raise AssertionError(f"up ended with {process.wait()}: {text[-3000:]}")
    endpoints = json.loads((directory / "runs" / "test" / "endpoints.json").read_text())
    sql = clickhouse_connect.get_client(dsn=endpoints["sql"], database="lightningbus", autogenerate_session_id=False)
    drain = subprocess.Popen(["cat"], stdin=process.stderr, stdout=subprocess.DEVNULL)
    try:
        yield Loop(directory, endpoints["bus"], sql, process, collector, Path(endpoints["credentials"]))
    finally:
        process.send_signal(2)
        code = process.wait(HANG_SECONDS)
        drain.wait(HANG_SECONDS)
        logs = "\n".join(log.read_text()[-1500:] for log in sorted((directory / "runs/test/logs").glob("*.log")))
        assert code == 0, logs
        alive = [pid for pid in endpoints["roles"].values() if Path(f"/proc/{pid}").exists()]
        assert not alive, f"left behind: {alive}"
