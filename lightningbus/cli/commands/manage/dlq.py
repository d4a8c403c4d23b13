"""``lightningbus dlq``: list, replay and delete dead letters, the messages that no reader could use."""

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

app = typer.Typer(
    help="List, replay and delete dead letters: messages that no reader could use.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Numbers = Annotated[list[int] | None, typer.Argument(help="numbers of dead letters, as `list` shows them")]
AllOption = Annotated[bool, typer.Option("--all", help="select all dead letters")]
StreamOption = Annotated[str | None, typer.Option(help="select only dead letters of this stream, e.g. TASKS")]


@app.command("list")
def list_(stream: StreamOption = None, as_json: JsonOption = False, bus: BusOption = None) -> None:
    """List dead letters, one per line. A line has number, stream, subject by the writer, deliveries, and reason."""

    async def look() -> list[tuple[int, DeadLetter]]:
        async with connect(bus, "dead") as at:
            return [entry async for entry in DeadLetterQueue(at).list_letters() if stream in (None, entry[1].stream)]

    letters = run_async(look())
    columns = ["number", "dead_since", "stream", "subject", "sequence", "deliveries", "reason"]
    rows = [tuple(_fields(number, letter).values()) for number, letter in letters]
    print_result((columns if rows else [], rows), as_json, none="there is no dead letter")


@app.command("show")
def show_(
    number: Annotated[int, typer.Argument(help="number of the dead letter, as `list` shows it")], bus: BusOption = None
) -> None:
    """Print a dead letter as JSON. It has the headers and the decoded message."""

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
    """Send dead letters to their streams again. Correct the cause first. Letters that were sent are deleted.

    Subject and headers are derived from the message itself, because a letter's own may be forged.
    """
    print(f"{_each(numbers, every, stream, bus, DeadLetterQueue.replay)} sent again")


@app.command()
def delete(
    numbers: Numbers = None, every: AllOption = False, stream: StreamOption = None, bus: BusOption = None
) -> None:
    """Delete dead letters for good."""
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
