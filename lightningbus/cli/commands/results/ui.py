"""``lightningbus ui``: serve a page that shows the store's data and, if a bus is reachable, the living roles."""

import asyncio
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from lightningbus.bus.errors import BusError
from lightningbus.bus.fleet.heartbeats import Fleet
from lightningbus.cli.options import BusOption, DatabaseOption, SqlOption, require_extra, run_async
from lightningbus.common.aio import first_completed
from lightningbus.common.listeners import AddressInUseError, connectable_host
from lightningbus.run.errors import UserError, exit_with
from lightningbus.run.processes.role_process import on_stop_signals
from lightningbus.run.run_directory.discovery import connect
from lightningbus.run.run_directory.page_address import Announce, claim_page
from lightningbus.schemas import subjects
from lightningbus.schemas.fleet import Heartbeat
from lightningbus.schemas.ids import review_msg_id
from lightningbus.schemas.reviews import RolloutReviewed

if TYPE_CHECKING:
    from lightningbus.bus.client import Bus

HOSTS_VARIABLE = "LIGHTNINGBUS_UI_ALLOWED_HOSTS"
BUS_SECONDS = 5.0
"""Seconds between two tries to reach a bus that does not answer."""


class Listener:
    """Follows the heartbeats of the bus that answers, now or later; without one the pages work too."""

    def __init__(self, bus: str | None) -> None:
        self._bus = bus
        self._fleet: Fleet | None = None
        self._connection: Bus | None = None
        self._problem = "looking for the bus"

    def members(self) -> Sequence[Heartbeat] | str:
        """Return the heartbeats of all live members, or a sentence that says why they are unknown."""
        return self._problem if self._fleet is None else self._fleet.members()

    async def publish(self, review: RolloutReviewed) -> str:
        """Publish a review; return a sentence why it could not be, else nothing."""
        if self._connection is None:
            return self._problem
        msg_id = review_msg_id(review.run_id, review.rollout_id, review.reviewer, review.reviewed_at_ns)
        try:
            await self._connection.publish(subjects.ROLLOUT_REVIEWED, review, msg_id=msg_id)
        except BusError as error:
            return str(error)
        return ""

    async def listen(self) -> None:
        """Follow the heartbeats for ever; reconnect when the bus is lost."""
        while True:
            try:
                async with connect(self._bus, "ui", wait=2.0) as bus, bus.fleet("*") as self._fleet:
                    self._connection = bus
                    await bus.closed.wait()
            except BusError as error:
                self._problem = str(error)
            finally:
                self._fleet = self._connection = None
            await asyncio.sleep(BUS_SECONDS)


def ui(
    host: Annotated[str, typer.Option(help="address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="port to listen on; 0 takes a free one", min=0, max=65535)] = 8124,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            help="further host name under which browsers reach the page, such as that of a proxy; may be repeated "
            f"[default: ${HOSTS_VARIABLE}, separated by spaces]",
            show_default=False,
        ),
    ] = None,
    sql: SqlOption = None,
    database: DatabaseOption = "lightningbus",
    bus: BusOption = None,
) -> None:
    """Show runs and rollouts in the browser, live, until Ctrl-C. It writes nothing but the reviews of its readers.

    Before the first run it waits for one. When a run ends, the page reads the run's files. A second `ui` prints the
    address of the first.
    """
    with require_extra("store"):
        from lightningbus.run.run_data.followed_run import followed
        from lightningbus.run.run_data.local_files import LocalFiles
        from lightningbus.run.run_data.other_runs import OtherRuns
        from lightningbus.run.run_data.run_data import SQL_VARIABLE
        from lightningbus.run.run_data.token_texts import read_tokens
        from lightningbus.store.clickhouse.client import StoreUnreachableError
        from lightningbus.store.ui.server import UiServer, serve

    url = sql or os.environ.get(SQL_VARIABLE)
    names = tuple(allowed_host or os.environ.get(HOSTS_VARIABLE, "").split())

    def read(run_id: str, model: str, token_ids: Sequence[int]) -> str:
        try:
            return read_tokens(run_id, model, token_ids)
        except UserError as error:
            raise LookupError(str(error)) from error

    async def show(listener: Listener, announce: Announce, stop: asyncio.Event) -> None:
        others, files = (None, None) if url else (OtherRuns(database), LocalFiles())
        async with (
            followed(None, url, database) as run,
            others.closing() if others else nullcontext(),
            serve(
                UiServer(run.reader, host, listener.members, others, listener.publish, files, names, read), host, port
            ) as address,
        ):
            announce(address)
            print(f"UI at {address}", file=sys.stderr, flush=True)
            local = f"http://{connectable_host(host)}:{urlsplit(address).port}"
            if local != address:
                print(f"on this machine it is at {local} too", file=sys.stderr, flush=True)
            if run.problem:
                print(f"{run.problem}; the page shows it then", file=sys.stderr, flush=True)
            await first_completed(run.following, stop.wait())

    async def run(announce: Announce) -> None:
        stop = asyncio.Event()
        on_stop_signals(asyncio.get_running_loop(), stop)
        listener = Listener(bus)
        try:
            await first_completed(show(listener, announce, stop), listener.listen(), stop.wait())
        except AddressInUseError as error:
            raise UserError(str(error)) from error

    try:
        with claim_page((host, url, database, bus, *names)) as page:
            if isinstance(page, str):
                print(f"UI at {page} already", file=sys.stderr)
            else:
                run_async(run(page))
    except StoreUnreachableError as error:
        exit_with(error)
