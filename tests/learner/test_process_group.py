"""The group of a learner that is one process: where it listens, and what it keeps."""

import os
from typing import Any

import pytest
import torch.distributed as dist

from lightningbus.learner.training.distributed import LOOPBACK, ProcessGroup


@pytest.fixture
def initialized(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Record the arguments of torch's process group, and start none."""
    fields: dict[str, Any] = {}
    monkeypatch.setattr(dist, "is_initialized", lambda: False)
    monkeypatch.setattr(dist, "init_process_group", lambda **arguments: fields.update(arguments))
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "get_world_size", lambda: 1)
    for name in ("RANK", *LOOPBACK):
        monkeypatch.setenv(name, "")  # restored after the test, whatever it sets
        monkeypatch.delenv(name)
    return fields


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_group_of_one_listens_on_loopback_alone(initialized: dict[str, Any], device: str) -> None:
    ProcessGroup(device)
    assert {name: os.environ.get(name) for name in LOOPBACK} == LOOPBACK
    assert initialized["world_size"] == 1 and ("nccl" in initialized["backend"]) == (device == "cuda")


def test_the_users_interface_and_that_of_a_sender_stay(
    initialized: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ProcessGroup("cuda", has_nccl_sender=True)
    assert "NCCL_SOCKET_IFNAME" not in os.environ and os.environ["GLOO_SOCKET_IFNAME"] == "lo"
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth0")
    ProcessGroup("cuda")
    assert os.environ["NCCL_SOCKET_IFNAME"] == "eth0"


def test_the_store_of_a_group_of_one_answers_after_the_start(initialized: dict[str, Any]) -> None:
    """NCCL meets at its first exchange. A store in a file that is gone by then never answers."""
    ProcessGroup("cuda")
    initialized["store"].set("key", "value")
    assert initialized["store"].get("key") == b"value"


def test_ranks_that_a_launcher_started_meet_where_it_says(
    initialized: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    ProcessGroup("cpu")
    assert "store" not in initialized and not set(LOOPBACK) & set(os.environ)
