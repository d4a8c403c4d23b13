"""Rows: sequences of tokens with those marked that are trained. Every sampled token is trained in one row. Pure."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from learner.batching.prefix_tree import parents
from learner.batching.transitions import Ids, Transition

NOT_TRAINED = -1
RowMode = Literal["transition", "trajectory"]
LongRows = Literal["mask", "split"]


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """``N`` tokens of a rollout, all of one temperature where they are trained.

    ``ids`` is ``int64[N]``; ``calls`` ``int64[N]`` says which call sampled a token that is trained here, and is
    `NOT_TRAINED` for context. ``logprobs`` (``float32[N]``) and ``versions`` (``int64[N]``) mean nothing there.
    """

    rollout: str
    temperature: float
    ids: Ids
    calls: Ids
    logprobs: NDArray[np.float32]
    versions: Ids

    @property
    def trained(self) -> NDArray[np.bool_]:
        """``bool[N]``: the tokens that are trained."""
        return np.not_equal(self.calls, NOT_TRAINED)

    @property
    def tokens(self) -> int:
        """How many tokens are trained."""
        return int(self.trained.sum())


@dataclass(frozen=True, slots=True)
class Shape:
    """How calls become rows: the settings of the same names."""

    roles: Collection[str] = ()
    mode: RowMode = "trajectory"
    max_tokens: int = 8192
    overlong: LongRows = "mask"


def rows_of(rollout: str, calls: Sequence[Transition], shape: Shape) -> tuple[list[Row], dict[int, str]]:
    """Rows in call order, and the reason of each call left out, by its place.

    ``transition``: a row per call. ``trajectory``: calls that extend each other share a row, and a prefix that several
    share is trained in one of them and context in the others.
    """
    left_out = {place: why for place, call in enumerate(calls) if (why := _unfit(call, shape))}
    extended = parents(calls) if shape.mode == "trajectory" else [None] * len(calls)
    pending = set(range(len(calls))) - left_out.keys()
    rows: list[Row] = []
    for place in reversed(range(len(calls))):  # what extends a call comes after it, so each path starts at its end
        if place not in pending:
            continue
        call = calls[place]
        if call.length > shape.max_tokens:
            pending.discard(place)
            rows += reversed(_pieces(rollout, call, shape.max_tokens))
            continue
        path = [place]
        while (before := extended[path[-1]]) is not None:
            path.append(before)
        members = [at for at in path if at in pending and calls[at].temperature == call.temperature]
        pending.difference_update(members)
        rows.append(_row(rollout, call, [calls[at] for at in members]))
    return rows[::-1], left_out


def _unfit(call: Transition, shape: Shape) -> str:
    if shape.roles and call.role not in shape.roles:
        return "role"
    if call.tokens == 0 or len(call.prompt_ids) == 0:
        return "empty"
    if call.temperature <= 0:
        return "greedy"
    if call.length > shape.max_tokens and shape.overlong == "mask":
        return "too long"
    return ""


def _row(rollout: str, last: Transition, trained: Sequence[Transition]) -> Row:
    """The whole context of the last call of a path, with the responses of the calls that are trained in it."""
    ids = np.concatenate([last.prompt_ids, last.response_ids])
    calls = np.full(len(ids), NOT_TRAINED, dtype=np.int64)
    logprobs = np.zeros(len(ids), dtype=np.float32)
    versions = np.full(len(ids), NOT_TRAINED, dtype=np.int64)
    for call in trained:
        where = slice(len(call.prompt_ids), call.length)
        calls[where], logprobs[where], versions[where] = call.index, call.logprobs, call.versions
    return Row(rollout, last.temperature, ids, calls, logprobs, versions)


def _pieces(rollout: str, call: Transition, max_tokens: int) -> list[Row]:
    """A call that is too long, in windows: each token is trained once, behind at least half a window of context."""
    whole = _row(rollout, call, [call])
    step = max_tokens // 2
    windows = []
    for start in range(len(call.prompt_ids), call.length, step):
        end = min(start + step, call.length)
        window = slice(max(0, end - max_tokens), end)
        calls = whole.calls.copy()
        calls[:start] = NOT_TRAINED
        logprobs, versions = whole.logprobs[window], whole.versions[window]
        windows.append(Row(rollout, call.temperature, whole.ids[window], calls[window], logprobs, versions))
    return windows
