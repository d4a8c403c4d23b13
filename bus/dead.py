"""The dead letters: looked at, sent again, or dropped."""

from collections.abc import AsyncIterator

from msgspec.structs import replace
from nats.js.errors import NotFoundError

from bus.connection import Bus
from bus.errors import BusError
from schemas import subjects
from schemas.codec import DecodeError, decode, encode
from schemas.events import DeadLetter, Task

REPLAY_SECONDS = 30.0


class DeadLetters:
    """What lies in DEAD, by its sequence there."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def all(self) -> AsyncIterator[tuple[int, DeadLetter]]:
        """Every letter, oldest first, one at a time: who may only look needs no consumer."""
        sequence = 1
        while True:
            try:
                found = await self._bus.js.get_msg(subjects.DEAD, sequence, subjects.ALL_DEAD, next=True)
            except NotFoundError:
                return
            sequence = int(found.seq or 0) + 1
            yield sequence - 1, decode(DeadLetter, found.data or b"")

    async def get(self, sequence: int) -> DeadLetter:
        """One letter; raises `BusError` if there is none of that number."""
        try:
            message = await self._bus.js.get_msg(subjects.DEAD, sequence)
        except NotFoundError:
            raise BusError(f"there is no dead letter {sequence}: see `lightningbus dead list`") from None
        return decode(DeadLetter, message.data or b"")

    async def replay(self, sequence: int) -> None:
        """Send a letter's message again where it came from, then drop the letter.

        A task goes on counting its attempts, so that what comes of it is told from what came before.
        """
        letter = await self.get(sequence)
        headers = {**letter.headers, subjects.MSG_ID_HEADER: f"replay:{sequence}"}
        await self._bus.publish_raw(letter.subject, again(letter), headers, REPLAY_SECONDS)
        await self.drop(sequence)

    async def drop(self, sequence: int) -> None:
        """Forget a letter; raises `BusError` if there is none of that number."""
        await self.get(sequence)
        await self._bus.js.delete_msg(subjects.DEAD, sequence)


def again(letter: DeadLetter) -> bytes:
    """What is sent of a letter's message; a task goes on counting its attempts."""
    if letter.stream != subjects.TASKS:
        return letter.payload
    try:
        task = decode(Task, letter.payload)
    except DecodeError:
        return letter.payload
    return encode(replace(task, earlier_attempts=task.earlier_attempts + letter.deliveries))
