"""``lightningbus status``: list the roles that are alive, and their state."""

import asyncio
import sys
from contextlib import closing, suppress
from typing import Annotated

import msgspec
import typer
from nats.errors import Error as NatsError
from nats.js.errors import APIError

from lightningbus.bus.client import Bus
from lightningbus.bus.errors import BusError, CredentialsError
from lightningbus.bus.fleet.node_state import SUSPECT_SECONDS
from lightningbus.bus.streams.specs import STORE_EVENTS
from lightningbus.cli.options import BusOption, run_async
from lightningbus.common.printable import printable_json
from lightningbus.run.errors import UserError
from lightningbus.run.processes.role_process import on_stop_signals
from lightningbus.run.run_data.run_bus import find_ended_run
from lightningbus.run.run_directory.directory import RunDirectory
from lightningbus.run.run_directory.discovery import connect

BACKLOG_SECONDS = 2.0
"""Seconds that the bus has to answer what waits for a store."""


def status(
    bus: BusOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="print a JSON list of objects, with the full status of each role")
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="update until Ctrl-C")] = False,
) -> None:
    """List the roles that are alive, and their state."""
    from lightningbus.bus.fleet.heartbeat_text import firing_alerts
    from lightningbus.run.display.live_view import LiveView, console, members_table
    from lightningbus.run.display.terminal import Terminal

    async def look() -> None:
        async with connect(bus, "status") as at, at.fleet("*") as fleet:
            if watch:
                stop = asyncio.Event()
                on_stop_signals(asyncio.get_running_loop(), stop)
                async with LiveView(fleet, "lightningbus status", console()).showing() as view:
                    view.set_phase("watching; Ctrl-C stops")
                    await stop.wait()
                return
            await asyncio.sleep(SUSPECT_SECONDS)  # who lives has said so by then
            members = fleet.members()
            if not members and at.permission_errors:
                raise CredentialsError(f"this user has no right to see who is alive: {at.permission_errors[-1]}")
            if all(beat.role != "store" for beat in members) and (sentence := await _describe_stopped_store(at)):
                print(sentence, file=sys.stderr)
            if as_json:
                print(printable_json([msgspec.to_builtins(beat) for beat in members]))
                return
            Terminal().print(members_table(members) if members else "nobody is alive on this bus")
            for alert in firing_alerts(members):
                Terminal(soft_wrap=True).print(f"ALERT  {alert}", style="bold red", highlight=False, markup=False)

    async def look_or_tell_the_end() -> None:
        try:
            await look()
        except BusError as error:
            if (ended := find_ended_run(bus)) is None:
                raise
            if not as_json:
                await asyncio.to_thread(_print_past_alerts, ended)
            raise UserError(f"{error}; run {ended.path.name!r} has ended") from error

    run_async(look_or_tell_the_end())


def _print_past_alerts(run: RunDirectory) -> None:
    """Print the alerts of a run that has ended; none where nothing of the run is stored here."""
    from lightningbus.run.display.terminal import Terminal

    try:
        from lightningbus.run.run_data.run_data import RunData
        from lightningbus.store.reports.run_alerts import RUN_ALERTS
    except ModuleNotFoundError:  # a machine without the store's packages
        return
    with suppress(UserError), closing(RunData(run)) as data:
        rows = data.ask(lambda client: client.query(RUN_ALERTS, parameters={"run_id": run.run_id}).result_rows)
        for _, sentence, _, is_over in rows:
            line = f"{'OVER ' if is_over else 'ALERT'}  {sentence}"
            Terminal(soft_wrap=True).print(line, style="bold red", highlight=False, markup=False)


async def _describe_stopped_store(bus: Bus) -> str:
    """Describe a store that has read this bus and is gone; empty: there was none, or this user may not see it."""
    try:
        async with asyncio.timeout(BACKLOG_SECONDS):
            backlog = await bus.backlog(STORE_EVENTS)
    except (APIError, NatsError, TimeoutError):
        return ""
    if not backlog.num_delivered:
        return ""
    return f"no store is alive, and there was one: {backlog.num_unacknowledged} events wait until it is started again"
