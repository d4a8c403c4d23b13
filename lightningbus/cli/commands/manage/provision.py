"""``lightningbus provision``: streams and consumers on a NATS server or cluster of one's own."""

from typing import Annotated

import typer

from lightningbus.bus.connection import CONNECT_SECONDS
from lightningbus.bus.streams.specs import ACK_WAIT_SECONDS, DEFAULT_POLICIES, runner_consumers
from lightningbus.cli.options import (
    DEFAULT_AGENT,
    BusOption,
    PolicyOption,
    SizeOption,
    parse_sizes,
    run_async,
)
from lightningbus.run.run_directory.discovery import connect


def provision(
    bus: BusOption = None,
    replicas: Annotated[
        int | None,
        typer.Option(min=1, max=5, help="servers that hold each stream [default: as it is, else 1]"),
    ] = None,
    agent: Annotated[
        list[str] | None, typer.Option(help="agent name whose runners' durable is made; repeat it [default: default]")
    ] = None,
    ack_wait: Annotated[
        float, typer.Option(min=0.1, max=60, help="`ack_wait` of these agents' runners")
    ] = ACK_WAIT_SECONDS,
    size: SizeOption = None,
    policy: PolicyOption = None,
) -> None:
    """Make the streams and consumers on a NATS server or cluster of your own; safe to repeat.

    On a bus with users nobody but admin makes consumers: run it again for each new agent name.
    """

    sizes = parse_sizes(size)

    async def make() -> None:
        async with connect(bus, "provision", "admin", CONNECT_SECONDS) as at:
            more = [each for name in agent or [DEFAULT_AGENT] for each in runner_consumers(name, ack_wait)]
            await at.provision(replicas, sizes, more, policy or DEFAULT_POLICIES)

    run_async(make())
