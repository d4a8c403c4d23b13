"""How far the log-probabilities of engine and learner are apart, in the precision that each computes in on a GPU."""

import asyncio
from collections.abc import Sequence
from typing import Any

import aiohttp
import numpy as np
from numpy.typing import NDArray

from benchmarks.gpu.context import Context
from benchmarks.gpu.sizes import Size
from benchmarks.gpu.training import CASES, make_settings
from benchmarks.results import Result
from benchmarks.weights.swaps import streamed
from lightningbus.bus.security.secrets import bearer_header, read_key
from lightningbus.learner.transitions.sequences import SequenceConfig, TrainSequence, build_sequences
from lightningbus.learner.transitions.transitions import build_transitions
from lightningbus.schemas.spans import ModelCall

ENGINE_SHARE = 0.85
LARGE_NATS = 0.1
"""A difference that is more than rounding."""


def measure(context: Context, size: Size) -> None:
    """Answers sampled by a node, whose engine then ends, and computed again by the learner on the same device."""
    from lightningbus.learner.training.verl_trainer import VerlTrainer

    calls = asyncio.run(_sample(context, size))
    config = SequenceConfig(mode="transition", max_tokens=context.scale.row_tokens)
    rows, excluded = build_sequences("r", build_transitions(calls), config)
    if excluded:
        raise ValueError(f"calls that cannot be trained: {sorted(set(excluded.values()))}")
    actual = VerlTrainer(make_settings(context, size, CASES["defaults"])).log_probs(rows)
    for name, value, unit in compare(rows, actual):
        context.report(Result(f"{context.title(size)}: {name}", value, unit))


def compare(rows: Sequence[TrainSequence], actual: Sequence[NDArray[np.float32]]) -> list[tuple[str, float, str]]:
    """Of d, the learner's log-probability less the engine's: mean |d|, mean(exp(d) - d - 1), the share of large ones.

    Pure. The second is k3 (http://joschu.net/blog/kl-approx.html).
    """
    differences = [values[row.trained] - row.logprobs[row.trained] for row, values in zip(rows, actual, strict=True)]
    d: NDArray[Any] = np.concatenate(differences).astype(np.float64)
    return [
        (f"mean abs(d) of {len(d):,} tokens", float(np.mean(np.abs(d))), "nats"),
        ("largest abs(d)", float(np.max(np.abs(d))), "nats"),
        ("k3", float(np.mean(np.expm1(d) - d)), "nats"),
        (f"share of tokens with abs(d) above {LARGE_NATS:g}", float(np.mean(np.abs(d) > LARGE_NATS)), "of 1"),
    ]


async def _sample(context: Context, size: Size) -> list[ModelCall]:
    scale = context.scale
    async with context.node(context.model(size), scale.engine(ENGINE_SHARE)) as (at, node):
        assert at.keys.inference_api_key is not None, "a run with a bus of its own has one"
        headers, begun = bearer_header(read_key(at.keys.inference_api_key)), asyncio.Event()
        async with aiohttp.ClientSession(headers=headers) as http:
            answers = [
                streamed(http, node, number, min(scale.answer_tokens, scale.row_tokens // 2), begun)
                for number in range(scale.swap.num_streams)
            ]
            return [call for call, _ in await asyncio.gather(*answers)]
