"""Publishing tasks, with progress; and the options of whoever publishes some of their own."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypedDict, Unpack

from lightningbus.bus.client import Bus
from lightningbus.learner.rollouts.consumer import MAX_GROUP_SIZE
from lightningbus.run.errors import UserError
from lightningbus.run.evaluation.request import ROLLOUT_SECONDS, RolloutRequest
from lightningbus.run.settings.policy_options import NAME
from lightningbus.schemas import ids
from lightningbus.schemas.tasks import Task
from lightningbus.tasks.task_loading import TaskInput
from lightningbus.tasks.task_publisher import TaskPublisher

CHUNK_SIZE, MAX_CHUNKS_IN_FLIGHT = 64, 4
"""Samples that are recorded together, and how many such lots are on their way at once."""

MAX_TEMPERATURE = 100.0
"""Beyond it an answer is random text."""
MAX_ROLLOUT_SECONDS = 30 * 86_400.0
"""Longest rollout that can be asked for, in seconds."""
MAX_ROLLOUT_CHARACTERS = 200
"""Longest rollout id, in characters: the limit of `lightningbus.schemas.base.Identifier`."""


class PublishOptions(TypedDict, total=False):
    """Keyword arguments of `Session.publish`."""

    samples: int
    """Rollouts of each task."""
    run: str
    """Run the results belong to; default: the session's."""
    agent: str
    """Name of the agent the tasks are for."""
    mode: str | None
    """``train`` or ``eval``; default: train, eval with ``evaluation``."""
    evaluation: str
    """Name of the evaluation they belong to."""
    weight_versions: Mapping[str, int]
    """Weight version, by model, that alone may answer the model's calls."""
    role_models: Mapping[str, str]
    """Models that answer for some roles of the agent."""
    prompt_versions: Mapping[str, int]
    """Version of each prompt, by its name, that is put into the calls."""
    pass_name: str
    """Part of task ids, to publish the same tasks again."""
    temperature: float | None
    """Temperature that replaces the agent's own in every model call."""
    deadline: float
    """Seconds a rollout may take."""


def build_tasks(
    inputs: Sequence[TaskInput], *, option_prefix: str = "", **options: Unpack[PublishOptions]
) -> Iterator[Task]:
    """Build the tasks to publish; raises `UserError` where they could not be published like this.

    ``option_prefix``: put in front of an option's name in errors, such as ``--``.
    """
    fields: dict[str, Any] = {**options}
    pass_name, temperature = fields.pop("pass_name", ""), fields.pop("temperature", None)
    timeout = fields.pop("deadline", ROLLOUT_SECONDS)
    request = RolloutRequest(
        **fields,
        sampling={} if temperature is None else {"temperature": temperature},
        rollout_timeout=timeout,
        id_parts=(options.get("evaluation", ""), pass_name),
    )
    _check_request(request, pass_name, option_prefix)
    longest = max((task.id for task in inputs), key=len)
    if (length := len(ids.rollout_id(longest + request.id_suffix, request.samples - 1))) > MAX_ROLLOUT_CHARACTERS:
        raise UserError(
            f"id {longest!r} with {option_prefix}run and {option_prefix}pass has {length} characters; "
            f"the limit is {MAX_ROLLOUT_CHARACTERS}"
        )
    return request.tasks(inputs)


def _check_request(request: RolloutRequest, pass_name: str, dash: str) -> None:
    if request.mode and request.mode not in ("train", "eval"):
        raise UserError(f"{dash}mode: {request.mode!r} is neither train nor eval")
    if request.evaluation and request.mode == "train":
        raise UserError(
            f"{dash}evaluation names an evaluation, and {dash}mode train publishes training tasks: leave one of "
            "them out"
        )
    if not 1 <= request.samples <= MAX_GROUP_SIZE:
        raise UserError(f"{dash}samples: {request.samples} is not between 1 and {MAX_GROUP_SIZE}")
    temperature = request.sampling.get("temperature", 0.0)
    if not 0 <= temperature <= MAX_TEMPERATURE:
        raise UserError(f"{dash}temperature: {temperature:g} is not between 0 and {MAX_TEMPERATURE:g}")
    if not 0 < request.rollout_timeout <= MAX_ROLLOUT_SECONDS:
        raise UserError(
            f"{dash}deadline: {request.rollout_timeout:g} is not above 0 and at most {MAX_ROLLOUT_SECONDS:g} seconds"
        )
    names = {"run": request.run, "agent": request.agent, "evaluation": request.evaluation, "pass": pass_name}
    for option, name in names.items():
        if not NAME.fullmatch(name) and (name or option in ("run", "agent")):
            raise UserError(f"{dash}{option}: {name!r} is not a name: letters, digits, _ and -, at most 64")


async def publish_all(
    bus: Bus, tasks: Iterable[Task], timeout: float, on_done: Callable[[], None], nonce: str = ""
) -> tuple[int, int]:
    """Publish every task and wait until the bus has them all; returns how many are new, and how many were there.

    ``nonce``: as `TaskPublisher.publish_tasks`.

    The first error stops it: `StreamFullError` when runners stay behind for ``timeout`` seconds.
    """
    new = total = 0
    pending: set[asyncio.Task[int]] = set()

    async def send(chunk: list[Task]) -> int:
        count = await TaskPublisher(bus).publish_tasks(chunk, timeout=timeout, nonce=nonce)
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
