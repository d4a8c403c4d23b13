"""``lightningbus dlq``: messages nobody could use, listed, replayed and deleted."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Annotated

import msgpack
import typer

from lightningbus.bus.dead_letters import DeadLetterQueue
from lightningbus.cli.options import BusOption, JsonOption, run_async
from lightningbus.cli.output import print_result
from lightningbus.common.printable import printable_json
from lightningbus.run.errors import exit_with
from lightningbus.run.run_directory.discovery import connect
from lightningbus.schemas.dead_letters import DeadLetter

app = typer.Typer(help="Dead letters: what nobody could use, and why.", no_args_is_help=True, rich_markup_mode=None)

Numbers = Annotated[list[int] | None, typer.Argument(help="numbers of the letters, as `list` shows them")]
AllOption = Annotated[bool, typer.Option("--all", help="every letter there is")]
StreamOption = Annotated[str | None, typer.Option(help="only those of a stream, e.g. TASKS")]


@app.command("list")
def list_(stream: StreamOption = None, as_json: JsonOption = False, bus: BusOption = None) -> None:
    """One line per letter: number, stream and subject by its writer's words, deliveries, and the reason."""

    async def look() -> list[tuple[int, DeadLetter]]:
        async with connect(bus, "dead") as at:
            return [entry async for entry in DeadLetterQueue(at).list_letters() if stream in (None, entry[1].stream)]

    letters = run_async(look())
    columns = ["number", "dead_since", "stream", "subject", "sequence", "deliveries", "reason"]
    rows = [tuple(_fields(number, letter).values()) for number, letter in letters]
    print_result((columns if rows else [], rows), as_json, none="there is no dead letter")


@app.command("show")
def show_(number: Annotated[int, typer.Argument(help="as `list` shows it")], bus: BusOption = None) -> None:
    """All of one letter, with its headers, and what can be read of it, as JSON."""

    async def look() -> DeadLetter:
        async with connect(bus, "dead") as at:
            return await DeadLetterQueue(at).get(number)

    letter = run_async(look())
    fields = {**_fields(number, letter), "headers": letter.headers}
    try:
        fields["message"] = msgpack.unpackb(letter.payload)
    except (ValueError, msgpack.UnpackException, RecursionError):
        fields["payload"] = letter.payload.hex()
    print(printable_json(fields, indent=2, default=lambda value: bytes(value).hex()))


@app.command()
def replay(
    numbers: Numbers = None, every: AllOption = False, stream: StreamOption = None, bus: BusOption = None
) -> None:
    """Send messages to their streams again; their letters go. Put right first what killed them.

    Subject and headers are made anew from what the message is: a letter's own are whoever's who wrote it.
    """
    print(f"{_each(numbers, every, stream, bus, DeadLetterQueue.replay)} sent again")


@app.command()
def delete(
    numbers: Numbers = None, every: AllOption = False, stream: StreamOption = None, bus: BusOption = None
) -> None:
    """Delete letters for good."""
    print(f"{_each(numbers, every, stream, bus, DeadLetterQueue.delete)} deleted")


def _each(
    numbers: list[int] | None,
    every: bool,
    stream: str | None,
    bus: str | None,
    act: Callable[[DeadLetterQueue, int], Awaitable[None]],
) -> int:
    if bool(numbers) == (every or stream is not None):
        exit_with("give the numbers of letters, or --all, or --stream: see `lightningbus dlq list`")

    async def work() -> int:
        async with connect(bus, "dead", "admin") as at:
            letters = DeadLetterQueue(at)
            selected = numbers or [
                number async for number, letter in letters.list_letters() if stream in (None, letter.stream)
            ]
            for number in selected:
                await act(letters, number)
            return len(selected)

    return run_async(work())


def _fields(number: int, letter: DeadLetter) -> dict[str, object]:
    return {
        "number": number,
        "dead_since": _moment(letter),
        "stream": letter.stream,
        "subject": letter.subject,
        "sequence": letter.sequence,
        "deliveries": letter.num_delivered,
        "reason": letter.reason,
    }


def _moment(letter: DeadLetter) -> str:
    return datetime.fromtimestamp(letter.dead_lettered_at_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S")
