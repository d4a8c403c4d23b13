"""Publishing the tasks of a file, with progress."""

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from lightningbus.bus.client import Bus
from lightningbus.run.errors import UserError
from lightningbus.schemas import ids
from lightningbus.schemas.tasks import Task
from lightningbus.tasks.task_file import TaskInput
from lightningbus.tasks.task_publisher import TaskPublisher

CHUNK_SIZE, MAX_CHUNKS_IN_FLIGHT = 64, 4
"""Samples that are recorded together, and how many such lots are on their way at once."""

MAX_ROLLOUT_CHARACTERS = 200
"""Of a rollout's id, as `lightningbus.schemas.base.Identifier` has it."""
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Publication:
    """How tasks are published: for which agent, in which run, how often, and under which weight version."""

    samples: int = 1
    run: str = "run"
    agent: str = "default"
    mode: str | None = None
    """train or eval; None: train, eval with an ``evaluation``."""
    evaluation: str = ""
    weight_versions: Mapping[str, int] = field(default_factory=dict)
    """By model: answer its calls from this version only."""
    role_models: Mapping[str, str] = field(default_factory=dict)
    """Models that answer for some roles of the agent."""
    prompt_versions: Mapping[str, int] = field(default_factory=dict, kw_only=True)
    """By prompt: put this version into the calls; a prompt that is not here: its released version."""
    pass_name: str = ""
    """Part of task ids, to publish the same tasks again under the same run."""
    temperature: float | None = None
    deadline: float = 60.0
    """Seconds a rollout may take."""
    option_prefix: str = ""
    """Put in front of a field's name in errors, such as ``--``."""

    def tasks(self, problems: Sequence[TaskInput]) -> Iterator[Task]:
        """Each problem ``samples`` times; raises `UserError` where they could not be published like this."""
        mode = self.mode or ("eval" if self.evaluation else "train")
        dash = self.option_prefix
        if mode not in ("train", "eval"):
            raise UserError(f"{dash}mode: {mode!r} is neither train nor eval")
        if self.evaluation and mode != "eval":
            raise UserError(
                f"{dash}evaluation names an evaluation, and {dash}mode train publishes training tasks: leave one of "
                "them out"
            )
        if self.samples < 1:
            raise UserError(f"{dash}samples: {self.samples} is less than 1")
        self._check_names()
        suffix = "@" + "-".join(filter(None, (self.run, self.evaluation, self.pass_name)))
        longest = max((problem.id for problem in problems), key=len)
        if (length := len(ids.rollout_id(longest + suffix, self.samples - 1))) > MAX_ROLLOUT_CHARACTERS:
            raise UserError(
                f"id {longest!r} with {dash}run and {dash}pass has {length} characters; "
                f"the limit is {MAX_ROLLOUT_CHARACTERS}"
            )
        return expand_samples(
            problems, self.samples, suffix, run_id=self.run, agent=self.agent, mode=mode, evaluation=self.evaluation,
            weight_versions=dict(self.weight_versions), role_models=dict(self.role_models),
            prompt_versions=dict(self.prompt_versions), deadline=self.deadline,
            sampling_params={} if self.temperature is None else {"temperature": self.temperature},
        )  # fmt: skip

    def _check_names(self) -> None:
        required = {"run": self.run, "agent": self.agent}
        optional = {"evaluation": self.evaluation, "pass": self.pass_name}
        for option, name in {**required, **{option: name for option, name in optional.items() if name}}.items():
            if not NAME.fullmatch(name):
                raise UserError(
                    f"{self.option_prefix}{option}: {name!r} is not a name: letters, digits, _ and -, at most 64"
                )


def expand_samples(problems: Iterable[TaskInput], samples: int, suffix: str = "", **fields: Any) -> Iterator[Task]:
    """``samples`` tasks per problem; ``fields`` are `Task`'s others, the same for all."""
    for problem in problems:
        for sample in range(samples):
            yield Task(
                id=problem.id + suffix,
                input=problem.input,
                labels=problem.labels,
                sample_index=sample,
                group_size=samples,
                **fields,
            )


async def publish_all(bus: Bus, tasks: Iterable[Task], timeout: float, on_done: Callable[[], None]) -> tuple[int, int]:
    """Publish every task and wait until the bus has them all; returns how many are new, and how many were there.

    The first error stops it: `StreamFullError` when runners stay behind for ``timeout`` seconds.
    """
    new = total = 0
    pending: set[asyncio.Task[int]] = set()

    async def send(chunk: list[Task]) -> int:
        count = await TaskPublisher(bus).publish_tasks(chunk, timeout=timeout)
        for _ in chunk:
            on_done()
        return count

    try:
        left_over = iter(tasks)
        while chunk := list(islice(left_over, CHUNK_SIZE)):
            pending.add(asyncio.create_task(send(chunk)))
            total += len(chunk)
            if len(pending) >= MAX_CHUNKS_IN_FLIGHT:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                new += sum(finished.result() for finished in done)
        new += sum(await asyncio.gather(*pending))
    finally:
        for left in pending:
            left.cancel()
    return new, total - new
