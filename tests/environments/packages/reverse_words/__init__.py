"""A taskset of verifiers 0.4 with a tool server, a reward and a metric."""

from collections.abc import Iterator
from typing import Any

import verifiers.v1 as vf

from reverse_words.tools import ReverseToolset


class ReverseData(vf.TaskData):
    """A word, reversed."""

    answer: str


class ReverseTaskConfig(vf.TaskConfig):
    """With the tool server's settings."""

    tools: vf.ToolsetConfig = vf.ToolsetConfig()


class ReverseTask(vf.Task[ReverseData, vf.State, ReverseTaskConfig]):
    """Reverse a word, by a tool."""

    @classmethod
    def toolsets(cls, config: ReverseTaskConfig) -> list[vf.Toolset]:
        """One server."""
        return [ReverseToolset(config.tools)]

    @vf.reward(weight=2.0)
    async def correct(self, trace: vf.Trace) -> float:
        """1 if the last reply has the answer."""
        return float(self.data.answer in trace.last_reply)

    @vf.metric
    async def length(self, trace: vf.Trace) -> float:
        """Characters of the last reply."""
        return float(len(trace.last_reply))


class ReverseConfig(vf.TasksetConfig):
    """How many tasks."""

    num_tasks: int = 3
    task: ReverseTaskConfig = ReverseTaskConfig()


class ReverseTaskset(vf.Taskset[ReverseTask, ReverseConfig]):
    """Words and their reverse."""

    def load(self) -> Iterator[Any]:
        """What verifiers calls."""
        for word in ("alpha", "beta", "gamma")[: self.config.num_tasks]:
            yield ReverseTask(ReverseData(prompt=f"Reverse {word}", answer=word[::-1]), self.config.task)


__all__ = ["ReverseTaskset"]
