"""Settings of the store."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from lightningbus.common.role_settings import RoleSettings


class StoreSettings(RoleSettings):
    """One ingester and, unless ``url`` names a server, the embedded ClickHouse engine it owns."""

    url: str | None = Field(
        default=None,
        description="ClickHouse server, http(s)://user:password@host:port; default: an embedded engine in this process",
        pattern=r"^https?://.+",
    )
    data_dir: Path = Field(default=Path("runs/store"), description="directory of the embedded engine's data")
    host: str = Field(default="127.0.0.1", description="address the embedded engine's HTTP interface listens on")
    allowed_hosts: list[str] = Field(
        default=[],
        description="further host names under which browsers may reach the embedded engine beyond loopback",
    )
    http_port: int = Field(
        default=8123, ge=0, le=65535, description="port of the embedded engine's HTTP interface; 0 takes a free one"
    )
    database: str = Field(
        default="lightningbus", description="database of the tables", pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$"
    )
    cluster: str | None = Field(
        default=None,
        description="cluster on which replicated tables are created; default: this server alone",
        pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$",
    )
    retention_days: int = Field(
        default=0, ge=0, le=65535, description="days for which rows of a run are kept; 0: forever"
    )
    retention_days_by_run: dict[str, int] = Field(
        default={}, description="exceptions from retention_days by run, as {baseline: 0}"
    )
    batch_rows: int = Field(default=20_000, ge=1, description="rows that complete a batch")
    batch_bytes: int = Field(default=16 * 1024 * 1024, ge=1, description="bytes of messages that complete a batch")
    flush_interval_seconds: float = Field(
        default=0.25, gt=0, description="longest wait of a row for its batch to fill, in seconds"
    )
    disk_free_mib: int = Field(
        default=1024, ge=0, description="free MiB on ClickHouse's disk below which an alert is raised"
    )
    stall_timeout_seconds: float = Field(
        default=120.0,
        gt=0,
        description="seconds without a finished rollout, or without a training step, before an alert",
    )
    expected: list[Literal["runner", "inference", "learner"]] = Field(
        default=[],
        description="roles whose absence raises an alert from the start; other roles raise one once they were seen, "
        "unless they announced their stop",
    )
    absent_seconds: float = Field(
        default=30.0, gt=0, description="seconds without any process of an expected role before an alert"
    )
    id: str | None = Field(
        default=None, description="name of this store; default: host-pid", pattern=r"^[A-Za-z0-9_-]{1,64}$"
    )

    def retention_days_of(self, run: str) -> int:
        """Return the days for which rows of a run are kept; 0: forever."""
        return self.retention_days_by_run.get(run, self.retention_days)
