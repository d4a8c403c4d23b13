"""Position of a learner in a stream that was made again, rolled back, or cut at its begin. Pure."""

from dataclasses import dataclass

import msgspec

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
    renewed = mark.tasks and mark.tasks != tasks.created_at
    queue = f"stream {tasks.name} was made anew at {tasks.created_at}" if renewed else ""
    reason = "; ".join(filter(None, [continuation.gap, queue]))
    nonce = f":{continuation.mark.created}:{continuation.mark.offset}:{continuation.sequence}:{tasks.created_at}"
    return StreamGap(reason, nonce, last, continuation.is_cut and not queue) if reason else None


def resume_at(mark: StreamMark, position: int, stream: StreamState) -> Continuation:
    """Find the position to continue from, by the checkpoint's ``mark`` and ``position`` and the present stream."""
    name = stream.name
    wanted = position - mark.offset
    if mark.created and stream.created_at != mark.created:
        return _begin_anew(mark, wanted, stream, f"stream {name} was made anew at {stream.created_at}: it had")
    if stream.last_seq < max(mark.last, wanted - 1):
        back = f"stream {name} ends at message {stream.last_seq} again: it has lost what it had since then,"
        return _begin_anew(mark, wanted, stream, back)
    now = StreamMark(created=stream.created_at, offset=mark.offset, last=mark.last, tasks=mark.tasks)
    if mark.created and wanted < stream.first_seq:
        missing = f"stream {name} begins at message {stream.first_seq} now: messages from {max(wanted, 1)} on are gone"
        return Continuation(now, stream.first_seq, missing, is_cut=True)
    return Continuation(now, wanted if mark.created else max(wanted, stream.first_seq))


def _begin_anew(mark: StreamMark, wanted: int, stream: StreamState, gap: str) -> Continuation:
    last = max(mark.last, wanted - 1)
    now = StreamMark(created=stream.created_at, offset=mark.offset + last, tasks=mark.tasks)
    remainder = f"{stream.num_messages} are there now" if stream.num_messages else "it is empty now"
    return Continuation(now, stream.first_seq, f"{gap} {last} messages, and {remainder}")
