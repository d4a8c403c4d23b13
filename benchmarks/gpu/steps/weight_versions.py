"""Weight versions into a GPU: published to served by each transport, and swaps with streams under way."""

import asyncio
import sys
from collections.abc import Sequence

from benchmarks.gpu.context import Context
from benchmarks.gpu.sizes import Size
from benchmarks.results import Result
from benchmarks.weights import __main__ as weights
from benchmarks.weights import swaps

ENGINE_SHARE = 0.5
"""Of the GPU's memory; the rest is the reference's, which computes log-probabilities beside it."""


def measure(context: Context, size: Size, ways: Sequence[str]) -> None:
    """Whole versions and deltas by some of `weights.WAYS`, and the longest gap in streams."""
    scale, model = context.scale, context.model(size)
    place = context.work / context.name
    place.mkdir(parents=True, exist_ok=True)
    engine = scale.engine(ENGINE_SHARE)
    if any(way.endswith("nccl") for way in ways):  # the learner's end is on the first GPU
        server = [sys.executable, "-P", "-m", "vllm.entrypoints.openai.api_server"]
        engine["vllm_command"] = ["env", "CUDA_VISIBLE_DEVICES=1", *server]
    asyncio.run(weights.measure(context.title(size), model, place, engine, ways, scale.swap, context.report))


def measure_swap(context: Context, size: Size, policy: str) -> None:
    """Streams under way while a version is swapped in, by ``kv_cache_on_swap``: the gap, and the mismatch before and
    after."""
    import torch

    scale, model = context.scale, context.model(size)
    measured = swaps.measure(
        policy, model, context.work / context.name, scale.engine(ENGINE_SHARE),
        {f"N(0, {scale.deviation:g})": scale.deviation}, scale.swap, "cuda" if torch.cuda.is_available() else "cpu",
    )  # fmt: skip
    title = f"{context.title(size)}, kv_cache_on_swap: {policy}"
    for item in asyncio.run(measured):
        streams = f"{scale.swap.num_streams} streams, every weight plus {item['update']}"
        context.report(Result(f"{title}: longest gap in a stream", item["pause_ms"], "ms", note=streams))
        note = f"{item['tokens_after']} tokens; beside it: before the swap"
        context.report(Result(f"{title}: k3 after the swap", item["k3_after"], "nats", item["k3_before"], note=note))
