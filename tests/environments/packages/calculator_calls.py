"""A taskset of verifiers 0.4: call a calculator; a reward for the right call, and a metric."""

from collections.abc import Iterator
from typing import Any

import verifiers.v1 as vf

SIGNS = {"plus": "+", "minus": "-", "times": "*"}


class CalculatorData(vf.TaskData):
    """A question, and the call that answers it."""

    call: str


class CalculatorTask(vf.Task[CalculatorData]):
    """One question."""

    @vf.reward
    async def right_call(self, trace: vf.Trace) -> float:
        """1 if the reply has the call."""
        return float(self.data.call in trace.last_reply)

    @vf.metric
    async def has_call(self, trace: vf.Trace) -> float:
        """1 if the reply has any call."""
        return float("<call>" in trace.last_reply)


class CalculatorConfig(vf.TasksetConfig):
    """How many questions."""

    num_tasks: int = 300


class CalculatorTaskset(vf.Taskset[CalculatorTask, CalculatorConfig]):
    """Sums, differences and products of two numbers."""

    def load(self) -> Iterator[Any]:
        """What verifiers calls."""
        for number in range(self.config.num_tasks):
            left, right, word = 10 + number * 37 % 90, 10 + number * 53 % 90, list(SIGNS)[number % 3]
            call = f"<call>{left}{SIGNS[word]}{right}</call>"
            yield CalculatorTask(CalculatorData(prompt=f"what is {left} {word} {right} ?", call=call))


__all__ = ["CalculatorTaskset"]
