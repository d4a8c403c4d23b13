"""Runs one role in this process: connects, handles signals, and ends with one sentence on an error."""

import asyncio
import gc
import os
import signal
from collections.abc import Awaitable, Callable
from typing import TypeVar

import uvloop
from nats.errors import Error as NatsError

from lightningbus.bus.client import Bus
from lightningbus.bus.errors import AddressError, BusError, CredentialsError, DlqLimitExceededError
from lightningbus.bus.fleet.heartbeats import default_instance_id
from lightningbus.common.aio import WorkInterruptedError, run_unless
from lightningbus.common.listeners import AddressInUseError
from lightningbus.common.observability import tracing
from lightningbus.common.observability.logs import bind_process_context, log_standard_output
from lightningbus.common.processes.subprocesses import ProcessGuard
from lightningbus.common.role_settings import RoleSettings
from lightningbus.run.errors import UserError, exit_with
from lightningbus.run.processes.health_server import HealthServer
from lightningbus.run.run_directory.discovery import BusEndpoint

S = TypeVar("S", bound=RoleSettings)
Role = Callable[[Bus, S, asyncio.Event], Awaitable[None]]


EX_TEMPFAIL = 75
"""Exit code (EX_TEMPFAIL of sysexits.h) of a role that has to start again, as it lost the bus. A supervisor does so,
without end."""


def on_stop_signals(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    """Install signal handlers: the first Ctrl-C or SIGTERM sets ``stop``, a second one exits at once."""

    def handle(number: int) -> None:
        if stop.is_set():
            raise SystemExit(128 + number)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, handle, number)


def on_hangup(loop: asyncio.AbstractEventLoop, reload: Callable[[], None], stop: asyncio.Event) -> None:
    """Install a handler of SIGHUP: it calls ``reload``; that of a terminal that closes sets ``stop``, unless nohup."""
    had_terminal = signal.getsignal(signal.SIGHUP) != signal.SIG_IGN and _has_terminal()

    def handle() -> None:
        if had_terminal and not _has_terminal():
            stop.set()
        else:
            reload()

    loop.add_signal_handler(signal.SIGHUP, handle)


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


async def serve_role(at: BusEndpoint, name: str, role: Role[S], settings: S) -> None:
    """Run a role until it is done, asked to stop, or cut off from the bus for good."""
    stop = asyncio.Event()
    on_stop_signals(asyncio.get_running_loop(), stop)
    health = HealthServer(name)
    async with health.serve(settings.health_address), Bus.connect(at.url, name, credentials=at.credentials) as bus:
        health.bus = bus
        try:
            await run_unless(bus.closed.wait(), role(bus, settings, stop), retry_after=None)
        except WorkInterruptedError:
            raise bus.failure from None


def run_role(at: BusEndpoint, name: str, role: Role[S], settings: S, *expected: type[Exception]) -> None:
    """Run a role to its end; an error the user can correct becomes one sentence and exit code 2, a lost bus 75."""
    ProcessGuard.raise_fd_limit()
    log_standard_output()
    bind_process_context(role=name, run=getattr(settings, "run", None))
    tracing.setup(name, default_instance_id(getattr(settings, "id", None)))
    gc.collect()
    gc.freeze()  # what was imported stays: to look through it again stops every call for tens of milliseconds
    try:
        uvloop.run(serve_role(at, name, role, settings))  # most of a runner's time is sockets: a third less of it
    except (CredentialsError, AddressError) as error:
        exit_with(error)
    except (BusError, NatsError) as error:
        exit_with(str(error) or type(error).__name__, EX_TEMPFAIL)
    except Exception as error:
        if not isinstance(error, (UserError, DlqLimitExceededError, AddressInUseError, *expected)):
            raise
        exit_with(error)
    finally:
        tracing.shutdown()
