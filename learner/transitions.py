"""LightningRL's transitions: each model call of a rollout becomes one row (input, output, what was sampled how)."""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from learner.rollouts import Rollout
from schemas.events import ModelCall


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One call: ``int64[P]`` prompt, ``int64[T]`` response, ``float32[T]`` log-probabilities it was sampled with."""

    rollout: str
    call: int
    prompt_ids: NDArray[np.int64]
    response_ids: NDArray[np.int64]
    logprobs: NDArray[np.float32]
    versions: NDArray[np.int64]
    """``int64[T]``: the weight version that made each token."""

    @property
    def tokens(self) -> int:
        """Response tokens: those that are trained."""
        return len(self.response_ids)


def rows_of(rollout: Rollout, roles: Collection[str], max_tokens: int) -> tuple[list[Row], list[str]]:
    """Rows to train, in call order, and a reason for each call left out; one malformed call leaves out all."""
    rows: list[Row] = []
    left_out: list[str] = []
    for call in rollout.calls:
        if roles and call.role not in roles:
            left_out.append("role")
            continue
        try:
            row = _row(rollout.id, call)
        except ValueError:
            return [], ["malformed"]
        if row.tokens == 0 or len(row.prompt_ids) == 0:
            left_out.append("empty")
        elif row.tokens + len(row.prompt_ids) > max_tokens:
            left_out.append("too long")
        else:
            rows.append(row)
    return rows, left_out


def token_versions(call: ModelCall) -> NDArray[np.int64]:
    """``int64[T]`` from the runs; raises ValueError unless they cover every token once."""
    tokens = len(call.response_ids) // 4
    versions = np.full(tokens, -1, dtype=np.int64)
    for run in call.versions:
        versions[run.start : run.end] = run.version
    if sum(run.end - run.start for run in call.versions) != tokens or (versions < 0).any():
        raise ValueError(f"the version runs of call {call.index} do not cover its {tokens} tokens")
    return versions


def _row(rollout: str, call: ModelCall) -> Row:
    if len(call.logprobs) != len(call.response_ids):
        raise ValueError(f"call {call.index} has not one log-probability per token")
    return Row(
        rollout=rollout,
        call=call.index,
        prompt_ids=np.frombuffer(call.prompt_ids, dtype="<u4").astype(np.int64),
        response_ids=np.frombuffer(call.response_ids, dtype="<u4").astype(np.int64),
        logprobs=np.frombuffer(call.logprobs, dtype="<f4"),
        versions=token_versions(call),
    )
