"""One more runner at the bus of a run that is up, for an agent that the run does not have."""

import asyncio
import hashlib
import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import TypeVar

from nats.errors import Error as NatsError

from lightningbus.bus.client import Bus
from lightningbus.bus.streams.specs import runner_consumers
from lightningbus.common.aio import run_unless
from lightningbus.run.errors import UserError
from lightningbus.run.processes.members import RUNNER_SECONDS, find_member, is_running_runner
from lightningbus.run.processes.supervisor import ChildSpec, Supervisor
from lightningbus.run.run_directory.directory import RunDirectory
from lightningbus.run.run_directory.discovery import API_KEY_VARIABLE, CREDENTIALS_VARIABLE
from lightningbus.runners.settings import RunnerSettings

log = logging.getLogger(__name__)
T = TypeVar("T")


async def with_extra_runner(
    directory: RunDirectory, bus: Bus, settings: RunnerSettings, work: Callable[[str], Awaitable[T]]
) -> T:
    """Return the result of ``work``, called with an agent's name whose tasks only this runner takes, while it runs.

    Its log lies beside those of the run. With it go its durables, and the tasks that it has not taken: nobody else
    takes them. ``bus`` has the rights of an admin, who alone makes and deletes durables. Raises `UserError` when the
    run is not up, or the runner fails.
    """
    endpoints = directory.read_endpoints()
    if endpoints is None:
        raise UserError(f"run {directory.path.name!r} is not up")
    agent = name_agent(settings)
    name = f"runner-{agent}"
    settings = settings.model_copy(update={"agent_name": agent, "id": name})
    keys = {CREDENTIALS_VARIABLE: endpoints.credentials, API_KEY_VARIABLE: endpoints.inference_api_key}
    consumers = runner_consumers(agent, settings.ack_wait)
    supervisor = Supervisor(directory, endpoints.bus, {key: path for key, path in keys.items() if path})

    async def run() -> T:
        async with bus.fleet("runner") as fleet, asyncio.timeout(RUNNER_SECONDS) as limit:
            await find_member(fleet, lambda beat: beat.id == name and is_running_runner(beat))
            limit.reschedule(None)
            return await work(agent)

    try:
        for consumer in consumers:
            await bus.ensure_consumer(consumer)
        await supervisor.start(ChildSpec(name, "runner", settings))
        return await run_unless(supervisor.wait_for_failure(), run())
    except TimeoutError:
        raise UserError(f"no runner within {RUNNER_SECONDS:g} s: see {directory.log(name)}") from None
    finally:
        await supervisor.stop_all()
        (directory.path / "work" / f"{name}.json").unlink(missing_ok=True)
        try:
            for consumer in consumers:
                await bus.remove_consumer(consumer)
        except NatsError as error:  # the bus may have ended with its run
            log.warning("tasks of agent %s may be left on the bus: %s", agent, str(error) or type(error).__name__)


def name_agent(settings: RunnerSettings) -> str:
    """Name an agent after its settings, and apart from the same agent in another evaluation: see `EXTRA_AGENT`."""
    return f"evaluation-{hashlib.sha256(settings.model_dump_json().encode()).hexdigest()[:12]}-{secrets.token_hex(4)}"
