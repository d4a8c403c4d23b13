"""Feeding a decoder: what it may answer, how long it may take, how much memory it may hold."""

import contextlib
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from lightningbus.common.processes.procfs import rss_bytes
from tests.fuzz.mutations import Mutator

INPUT_SECONDS = 5.0
"""An input that takes more CPU time hangs; the slowest takes milliseconds."""
MEMORY_BYTES = 512 * 1024 * 1024
"""How much more a process may hold than when it began."""
LOOK_EVERY = 1000
MOST_FAULTS = 5
"""Of one decoder, before the rest is left."""


class HangError(BaseException):
    """An input took too long; nothing a decoder catches."""


@dataclass(frozen=True, slots=True)
class Target:
    """One decoder: right inputs, the call, and the errors it documents."""

    name: str
    corpus: Sequence[bytes]
    decode: Callable[[bytes], object]
    errors: tuple[type[Exception], ...]
    form: str = "bytes"
    """What inputs are made of: bytes, json or msgpack."""
    weight: float = 1.0
    """Of all inputs so many more, or fewer, where one takes long."""


@dataclass(slots=True)
class Fault:
    """An input that was answered in no documented way."""

    target: str
    data: bytes
    why: str


@dataclass(slots=True)
class Outcome:
    """What came of feeding one decoder."""

    target: str
    inputs: int = 0
    decoded: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    grown: int = 0
    """Bytes of memory more than at the beginning, at most."""
    faults: list[Fault] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Inputs per second."""
        return self.inputs / max(self.seconds, 1e-9)


def _hangs(number: int, frame: FrameType | None) -> None:
    raise HangError(f"not done after {INPUT_SECONDS:g} s of CPU time")


def fuzz(target: Target, inputs: int, seed: int) -> Outcome:
    """Feed a decoder; must run in the main thread."""
    outcome = Outcome(target.name)
    mutator = Mutator(target.corpus, target.form, f"{seed}:{target.name}")
    assert any(_taken(target, data) for data in target.corpus), f"{target.name} takes nothing, so this proves nothing"
    began, kept = time.perf_counter(), rss_bytes(os.getpid())
    with _impatient():
        while outcome.inputs < inputs and len(outcome.faults) < MOST_FAULTS:
            _feed(target, mutator.next(), outcome)
            if outcome.inputs % LOOK_EVERY == 0:
                outcome.grown = max(outcome.grown, rss_bytes(os.getpid()) - kept)
                if outcome.grown > MEMORY_BYTES:
                    outcome.faults.append(Fault(target.name, b"", f"{outcome.grown} bytes of memory more than before"))
                    break
    outcome.seconds = time.perf_counter() - began
    return outcome


def feed(target: Target, data: bytes) -> list[Fault]:
    """Feed a decoder one input, as `fuzz` does; must run in the main thread."""
    outcome = Outcome(target.name)
    with _impatient():
        _feed(target, data, outcome)
    return outcome.faults


@contextlib.contextmanager
def _impatient() -> Iterator[None]:
    before = signal.signal(signal.SIGPROF, _hangs)
    try:
        yield
    finally:
        signal.signal(signal.SIGPROF, before)


def _taken(target: Target, data: bytes) -> bool:
    with contextlib.suppress(*target.errors):
        target.decode(data)
        return True
    return False


def _feed(target: Target, data: bytes, outcome: Outcome) -> None:
    outcome.inputs += 1
    began = time.perf_counter()
    signal.setitimer(signal.ITIMER_PROF, INPUT_SECONDS)
    try:
        target.decode(data)
        outcome.decoded += 1
    except target.errors as error:
        if not str(error):
            outcome.faults.append(Fault(target.name, data, f"{type(error).__name__} says nothing"))
    except (Exception, HangError) as error:
        outcome.faults.append(Fault(target.name, data, _describe(error)))
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        outcome.slowest = max(outcome.slowest, time.perf_counter() - began)


def _describe(error: BaseException) -> str:
    last: Any = traceback.extract_tb(error.__traceback__)[-1]
    frames = [
        f"{item.filename.rpartition('/')[2]}:{item.lineno}" for item in traceback.extract_tb(error.__traceback__)[-4:]
    ]
    return f"{type(error).__name__}: {str(error)[:200]} at {' > '.join(frames)} in {last.name}"
