"""Position of a learner in streams that were made again, rolled back, or cut at their begin. Pure."""

from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from lightningbus.bus.streams.specs import StreamState


class StreamMark(msgspec.Struct, frozen=True, kw_only=True):
    """A learner's knowledge of the stream it reads; part of its checkpoint.

    A stream that lost messages gives their sequences to other messages. The learner's own positions only ever grow: a
    position is ``offset`` plus the present sequence in the stream.
    """

    created: str = ""
    """Creation time of the stream; empty: unknown."""
    offset: int = 0
    last: int = 0
    """The greatest sequence that was read of it."""
    tasks: str = ""
    """Creation time of the stream of tasks; empty: unknown."""
    last_task: int = 0
    """Greatest known sequence of the stream of tasks: of this learner's own, and of all at the last check."""
    num_losses: int = 0
    """Losses that were noticed before."""


@dataclass(frozen=True, slots=True)
class Continuation:
    """The stream as it is known from now on, and the sequence to read from."""

    mark: StreamMark
    sequence: int
    gap: str = ""
    """Sentence about missing messages; empty: none."""
    is_cut: bool = False
    """The stream is the same, and begins later than where this learner was."""


@dataclass(frozen=True, slots=True)
class StreamGap:
    """The bus lost messages: what of the outstanding tasks has not ended is dispatched again."""

    reason: str
    nonce: str
    """The same for the same loss, whenever it is noticed."""
    last: int
    """Sequence of the last message that the stream has kept; the loss is known once it is read."""
    is_cut: bool = False
    """Only rollouts are missing, at the begin of the stream: this learner was behind, and others were not."""


def find_gap(continuation: Continuation, mark: StreamMark, tasks: StreamState, last: int) -> StreamGap | None:
    """Describe missing rollouts or tasks; None: none. ``mark`` is the earlier state, ``last`` as in `StreamGap`."""
    queue = _describe_task_loss(mark, tasks)
    reason = "; ".join(filter(None, [continuation.gap, queue]))
    nonce = f":{continuation.mark.created}:{tasks.created_at}:{mark.num_losses + 1}"
    return StreamGap(reason, nonce, last, continuation.is_cut and not queue) if reason else None


def advance_mark(mark: StreamMark, tasks: StreamState, last_task: int, gap: StreamGap | None) -> StreamMark:
    """Note the present stream of tasks, and a gap if there is one; ``last_task`` is of the publishes since the check.

    After a gap such a sequence may be that of a lost task, so the stream's counts.
    """
    last = tasks.last_seq if gap is not None else max(tasks.last_seq, last_task)
    num_losses = mark.num_losses + (gap is not None)
    return replace(mark, tasks=tasks.created_at, last_task=last, num_losses=num_losses)


def _describe_task_loss(mark: StreamMark, tasks: StreamState) -> str:
    """Describe lost tasks; empty: none. Neither a purge nor a task that is done lowers the last sequence."""
    if not mark.tasks:
        return ""
    if mark.tasks != tasks.created_at:
        return f"stream {tasks.name} was made anew at {tasks.created_at}"
    if tasks.last_seq < mark.last_task:
        return (
            f"stream {tasks.name} ends at message {tasks.last_seq} again: it has lost messages up to {mark.last_task}"
        )
    return ""


def resume_at(mark: StreamMark, position: int, stream: StreamState) -> Continuation:
    """Find the position to continue from, by the checkpoint's ``mark`` and ``position`` and the present stream."""
    name = stream.name
    wanted = position - mark.offset
    last = max(mark.last, wanted - 1)
    if mark.created and stream.created_at != mark.created:
        remainder = f"{stream.num_messages} are there now" if stream.num_messages else "it is empty now"
        gap = f"stream {name} was made anew at {stream.created_at}: it had {last} messages, and {remainder}"
        return _begin_anew(mark, last, stream, gap)
    if stream.last_seq < last:
        num_lost = last - stream.last_seq
        lost = "the message" if num_lost == 1 else f"the {num_lost} messages"
        gap = f"stream {name} ends at message {stream.last_seq} again: it has lost {lost} after that"
        return _begin_anew(mark, last, stream, gap)
    now = replace(mark, created=stream.created_at)
    if mark.created and wanted < stream.first_seq:
        missing = f"stream {name} begins at message {stream.first_seq} now: messages from {max(wanted, 1)} on are gone"
        return Continuation(now, stream.first_seq, missing, is_cut=True)
    return Continuation(now, wanted if mark.created else max(wanted, stream.first_seq))


def _begin_anew(mark: StreamMark, last: int, stream: StreamState, gap: str) -> Continuation:
    now = replace(mark, created=stream.created_at, offset=mark.offset + last, last=0)
    return Continuation(now, stream.first_seq, gap)
