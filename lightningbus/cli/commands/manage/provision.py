"""``lightningbus provision``: create streams and consumers on your own NATS server or cluster."""

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
        typer.Option(min=1, max=5, help="number of servers that hold each stream [default: unchanged, else 1]"),
    ] = None,
    agent: Annotated[
        list[str] | None,
        typer.Option(help="name of an agent to create its runners' consumers for; repeatable [default: default]"),
    ] = None,
    ack_wait: Annotated[
        float, typer.Option(min=0.1, max=60, help="setting `ack_wait` of these agents' runners, in seconds")
    ] = ACK_WAIT_SECONDS,
    size: SizeOption = None,
    policy: PolicyOption = None,
) -> None:
    """Create the streams and consumers on your own NATS server or cluster; safe to repeat.

    On a bus with users only the admin can create consumers: run this again for each new agent name.
    """

    sizes = parse_sizes(size)

    async def make() -> None:
        async with connect(bus, "provision", "admin", CONNECT_SECONDS) as at:
            more = [each for name in agent or [DEFAULT_AGENT] for each in runner_consumers(name, ack_wait)]
            report = await at.provision(replicas, sizes, more, policy or DEFAULT_POLICIES)
            print(report.describe())

    run_async(make())
