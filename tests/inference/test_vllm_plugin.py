"""What our plugin changes in vLLM's processes."""

import threading
from collections.abc import Iterator

import pytest

from lightningbus.inference.engine import vllm_plugin

pytest.importorskip("vllm")

from vllm.distributed.device_communicators import shm_broadcast
from vllm.platforms import current_platform

pytestmark = pytest.mark.skipif(not current_platform.is_cpu(), reason="vLLM's processes spin on a GPU, as they should")


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[shm_broadcast.MessageQueue, shm_broadcast.MessageQueue]]:
    """The two ends of a queue between processes of vLLM's, as our plugin leaves it."""
    condition = shm_broadcast.SpinCondition
    monkeypatch.setattr(condition, "wait", condition.wait)
    monkeypatch.setattr(condition, "wait_idle", None, raising=False)
    assert vllm_plugin.stop_spinning() and vllm_plugin.stop_spinning(), "vLLM loads plugins more than once"
    writer = shm_broadcast.MessageQueue(1, 1)
    reader = shm_broadcast.MessageQueue.create_from_handle(writer.export_handle(), 0)
    waiting = threading.Thread(target=writer.wait_until_ready)
    waiting.start()
    reader.wait_until_ready()
    waiting.join()
    yield writer, reader


def test_a_reader_sleeps_until_the_message_comes(
    queue: tuple[shm_broadcast.MessageQueue, shm_broadcast.MessageQueue], monkeypatch: pytest.MonkeyPatch
) -> None:
    def spin() -> None:
        raise AssertionError("the reader spins")

    writer, reader = queue
    monkeypatch.setattr(shm_broadcast, "sched_yield", spin)
    for number in range(5):
        timer = threading.Timer(0.05, writer.enqueue, [number])
        timer.start()
        assert reader.dequeue(timeout=30) == number
        timer.join()


def test_messages_in_quick_succession_are_looked_for_by_the_millisecond(
    queue: tuple[shm_broadcast.MessageQueue, shm_broadcast.MessageQueue], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The notification of every second one may be lost; vLLM itself would look again after five seconds."""
    timeouts: set[int | None] = set()
    wait_idle = shm_broadcast.SpinCondition.wait_idle  # type: ignore[attr-defined]

    def wait(condition: shm_broadcast.SpinCondition, timeout_ms: int | None) -> None:
        timeouts.add(timeout_ms)
        wait_idle(condition, timeout_ms)

    monkeypatch.setattr(shm_broadcast.SpinCondition, "wait_idle", wait)
    writer, reader = queue
    for number in range(20):
        sender = threading.Thread(target=lambda pair: [*map(writer.enqueue, pair)], args=((number, -number),))
        sender.start()
        assert [reader.dequeue(timeout=30), reader.dequeue(timeout=30)] == [number, -number]
        sender.join()
    assert timeouts == {vllm_plugin.RECHECK_MS}
