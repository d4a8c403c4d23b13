"""Running one role in this process: connect, obey signals, end with one sentence when something is wrong."""

import asyncio
import logging
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import NoReturn, TypeVar

import uvloop
from nats.errors import Error as NatsError
from pydantic import BaseModel

from bus import AccessError, Bus, BusError, PoisonFlood
from lightningbus.places import Place

S = TypeVar("S", bound=BaseModel)
Role = Callable[[Bus, S, asyncio.Event], Awaitable[None]]


TRY_AGAIN = 75
"""Exit code (EX_TEMPFAIL of sysexits.h) of a role that lost the bus: a supervisor starts it again and again."""


class UserError(Exception):
    """Something the user can put right; shown as one sentence, without a traceback."""


def fail(sentence: object, code: int = 2) -> NoReturn:
    """Say what is wrong on standard error and exit; 2 tells a supervisor not to try again."""
    print(f"lightningbus: {sentence}", file=sys.stderr, flush=True)
    raise SystemExit(code)


def set_up_logging(verbose: bool = False) -> None:
    """Log lines on standard error, one per event."""
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.INFO,
        format="%(asctime)s %(levelname).1s %(name)s: %(message)s",
        datefmt="%H:%M:%S",
        stream=sys.stderr,
    )
    # verl names its loggers by file, and says at every checkpoint what it wrote where.
    logging.getLogger().handlers[0].addFilter(lambda line: line.levelno >= logging.WARNING or line.name[0] != "/")
    # nats-py reads TLS by asyncio's streams, of which asyncio itself complains at each close.
    logging.getLogger("asyncio").addFilter(lambda line: "eof_received()" not in str(line.msg))
    for noisy in ("asyncio", "urllib3", "httpx", "filelock", "nats"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def on_stop_signals(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    """The first Ctrl-C or SIGTERM asks to stop; a second one stops at once."""

    def handle(number: int) -> None:
        if stop.is_set():
            raise SystemExit(128 + number)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, handle, number)


async def serve(at: Place, name: str, role: Role[S], settings: S) -> None:
    """Run a role until it is done, asked to stop, or cut off from the bus for good."""
    stop = asyncio.Event()
    on_stop_signals(asyncio.get_running_loop(), stop)
    async with Bus.connect(at.url, name, access=at.access) as bus:
        work = asyncio.ensure_future(role(bus, settings, stop))
        lost = asyncio.ensure_future(bus.failed.wait())
        await asyncio.wait({work, lost}, return_when=asyncio.FIRST_COMPLETED)
        lost.cancel()
        if not work.done():
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            raise BusError("the connection to the bus was closed for good")
        await work


def run_role(at: Place, name: str, role: Role[S], settings: S, *expected: type[Exception]) -> None:
    """`serve` to the end; errors a user can act on become one sentence and exit code 2, a lost bus 75."""
    try:
        uvloop.run(serve(at, name, role, settings))  # most of a runner's time is sockets: a third less of it
    except AccessError as error:
        fail(error)
    except (BusError, NatsError) as error:
        fail(str(error) or type(error).__name__, TRY_AGAIN)
    except Exception as error:
        if not isinstance(error, (UserError, PoisonFlood, *expected)):
            raise
        fail(error)
