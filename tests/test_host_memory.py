"""Memory that is left: the machine's, or the control group's where that is less."""

from pathlib import Path

import pytest

from lightningbus.common.processes.host_memory import available_bytes, has_room, total_bytes


@pytest.mark.parametrize(
    ("limit", "expected"), [("max", 4096 * 1024), ("3000000", 3000000 - 1000000 + 500000), ("1000", 0)]
)
def test_the_smaller_of_machine_and_control_group_counts(tmp_path: Path, limit: str, expected: int) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 8192 kB\nMemAvailable: 4096 kB\n")
    (tmp_path / "memory.max").write_text(limit)
    (tmp_path / "memory.current").write_text("1000000")
    (tmp_path / "memory.stat").write_text("anon 5\ninactive_file 500000\n")
    assert available_bytes(tmp_path / "meminfo", tmp_path) == expected
    assert available_bytes(tmp_path / "meminfo", tmp_path / "none") == 4096 * 1024
    assert available_bytes(tmp_path / "none", tmp_path) is None
    most = 8192 * 1024
    assert total_bytes(tmp_path / "meminfo", tmp_path) == (most if limit == "max" else int(limit))
    assert total_bytes(tmp_path / "meminfo", tmp_path / "none") == most
    assert total_bytes(tmp_path / "none", tmp_path) is None


def test_no_room_is_taken_where_none_is_known() -> None:
    assert has_room(80, 100) and not has_room(81, 100) and not has_room(0, None)
