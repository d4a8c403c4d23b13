"""Memory that is left: the machine's, or the control group's where that is less."""

from pathlib import Path

import pytest

from lightningbus.common.processes.host_memory import HostMemory, has_room, read_memory

MACHINE = 8192 * 1024
FREE = 4096 * 1024


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A machine, so far without control groups."""
    (tmp_path / "meminfo").write_text("MemTotal: 8192 kB\nMemAvailable: 4096 kB\n")
    return tmp_path


def second(group: Path, limit: str) -> None:
    """Make a group of version 2."""
    group.mkdir(parents=True, exist_ok=True)
    (group / "memory.max").write_text(limit)
    (group / "memory.current").write_text("1000000")
    (group / "memory.stat").write_text("anon 5\ninactive_file 500000\n")


def first(group: Path, limit: int) -> None:
    """Make a group of version 1."""
    group.mkdir(parents=True, exist_ok=True)
    (group / "memory.limit_in_bytes").write_text(str(limit))
    (group / "memory.usage_in_bytes").write_text("1000000")
    (group / "memory.stat").write_text("inactive_file 5\ntotal_inactive_file 500000\n")


def measure(host: Path, membership: str) -> HostMemory | None:
    (host / "membership").write_text(membership)
    return read_memory(host / "meminfo", host / "membership", host / "groups")


@pytest.mark.parametrize(("limit", "available"), [("3000000", 3000000 - 1000000 + 500000), ("1000", 0)])
def test_the_smaller_of_machine_and_control_group_counts(host: Path, limit: str, available: int) -> None:
    second(host / "groups", limit)
    assert measure(host, "0::/\n") == (available, int(limit))
    assert read_memory(host / "none", host / "membership", host / "groups") is None


def test_a_group_without_a_limit_does_not_count(host: Path) -> None:
    second(host / "groups", "max")
    assert measure(host, "0::/\n") == (FREE, MACHINE)


def test_the_least_limit_along_the_path_counts(host: Path) -> None:
    second(host / "groups/user.slice", "3000000")
    second(host / "groups/user.slice/job.scope", "max")
    second(host / "groups/other.slice", "1000")
    assert measure(host, "0::/user.slice/job.scope\n") == (2500000, 3000000)
    second(host / "groups/user.slice/job.scope", "2000000")
    assert measure(host, "0::/user.slice/job.scope\n") == (1500000, 2000000)


def test_a_group_of_the_first_version_counts(host: Path) -> None:
    first(host / "groups/memory", 9223372036854771712)
    lines = "4:cpu,memory:/job:1\n1:name=systemd:/\n0::/\n"
    assert measure(host, lines) == (FREE, MACHINE)
    first(host / "groups/memory/job:1", 2000000)
    assert measure(host, lines) == (1500000, 2000000)


@pytest.mark.parametrize("path", ["/docker/0123", "/../../other"])
def test_a_container_that_sees_its_group_as_the_root_reads_that(host: Path, path: str) -> None:
    second(host / "groups", "3000000")
    assert measure(host, f"0::{path}\n") == (2500000, 3000000)


def test_without_groups_the_machine_counts(host: Path) -> None:
    assert read_memory(host / "meminfo", host / "none", host / "none") == (FREE, MACHINE)


def test_no_room_is_taken_where_none_is_known() -> None:
    assert has_room(80, 100) and not has_room(81, 100) and not has_room(0, None)
