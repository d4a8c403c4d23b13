"""A swap amid answers: streams that are half made when the weights change, their pause, and their log-probabilities.

The mismatch is k3 = mean(exp(d) - d - 1), d being the learner's log-probability less the engine's, each token under the
version the engine named for it.
"""

import asyncio
import json
import time
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

from lightningbus.bus.client import Bus
from lightningbus.bus.security.secrets import bearer_header, read_key
from lightningbus.inference.settings import InferenceSettings
from lightningbus.learner.transitions.sequences import SequenceConfig, TrainSequence, build_sequences
from lightningbus.learner.transitions.transitions import build_transitions
from lightningbus.run.processes.stack import LocalStack, start_stack
from lightningbus.run.processes.supervisor import ChildSpec
from lightningbus.run.run_directory.directory import RunDirectory
from lightningbus.run.settings.run_file import BusSettings
from lightningbus.schemas import subjects
from lightningbus.schemas.fleet import Heartbeat
from lightningbus.schemas.spans import ModelCall, VersionSpan
from lightningbus.schemas.weights.events import Blob, WeightManifest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "calculator"
STREAMS, PROMPT, BEGUN = 32, 16, 12
CONTEXT = 512
CPU_ENGINE: Mapping[str, Any] = {
    "dtype": "float32",
    "max_model_len": CONTEXT,
    "max_num_seqs": STREAMS,
    "cpu_threads": 1,
}
"""Settings of the node."""
LOGITS_CHUNK = 512
"""Tokens whose log-probabilities are computed in float64 at a time."""


@dataclass(frozen=True, slots=True)
class Answers:
    """Streams that are under way when the weights change."""

    num_streams: int = STREAMS
    num_tokens: int = 400
    """Of each answer: so many that the swap comes amid them."""


ANSWERS = Answers()


async def measure(
    policy: str,
    model: Path,
    work: Path,
    engine: Mapping[str, Any],
    sizes: Mapping[str, float],
    answers: Answers = ANSWERS,
    device: str = "cpu",
) -> list[dict[str, Any]]:
    """The mismatch and the pause of each size of update under one policy; ``device`` computes the reference."""
    from safetensors.torch import load_file

    with RunDirectory(work / policy).lock(fresh=True) as directory:
        weights = [load_file(model / "model.safetensors")]
        mismatches = []
        async with start_stack(directory, BusSettings(port=0), f"kv cache: {policy}") as at:
            place = {"model_path": model, "id": "node", "work_dir": directory.path / "node"}
            settings = InferenceSettings.model_validate({**engine, **place, "kv_cache_on_swap": policy})
            await at.supervisor.start(ChildSpec("node", "inference", settings))
            node = await announce(at, await put(at, directory.path, weights[0], 0), 0)
            for size, deviation in sizes.items():
                weights.append(moved(weights[-1], deviation, seed=len(weights)))
                version = len(weights) - 1
                change = relative_change(weights[-2], weights[-1])
                calls, node, pause = await swapped_amid(at, directory.path, weights[-1], node, version, change, answers)
                mismatches.append(await asyncio.to_thread(mismatch, model, weights, calls, version, device))
                mismatches[-1] |= {
                    "policy": policy,
                    "update": size,
                    "deviation": deviation,
                    "change": change,
                    "pause_ms": round(1e3 * pause, 1),
                }
        return mismatches


async def swapped_amid(
    at: LocalStack,
    path: Path,
    weights: dict[str, Any],
    node: Heartbeat,
    version: int,
    change: float,
    answers: Answers = ANSWERS,
) -> tuple[list[ModelCall], Heartbeat, float]:
    """Streams that are under way while a version is published; what they were, and the longest gap in a stream.

    ``change``: as of the manifest.
    """
    blob = await put(at, path, weights, version)
    begun = asyncio.Event()
    assert at.keys.inference_api_key is not None, "a run with a bus of its own has one"
    async with aiohttp.ClientSession(headers=bearer_header(read_key(at.keys.inference_api_key))) as http:
        requests = [
            asyncio.create_task(streamed(http, node, number, answers.num_tokens, begun))
            for number in range(answers.num_streams)
        ]
        await begun.wait()
        after = await announce(at, blob, version, change)
        ended = await asyncio.gather(*requests)
    return [call for call, _ in ended], after, max(gap for _, gap in ended)


async def streamed(
    http: aiohttp.ClientSession, node: Heartbeat, number: int, num_tokens: int, begun: asyncio.Event
) -> tuple[ModelCall, float]:
    """One answer, and the longest gap in it, in seconds; ``begun`` is set when its first tokens are there."""
    prompt = np.random.default_rng(number).integers(10, 300, PROMPT).tolist()
    body = {"model": "policy", "prompt": prompt, "max_tokens": num_tokens, "ignore_eos": True}
    body |= {"logprobs": 0, "stream": True, "return_token_ids": True, "temperature": 1.0}
    ids: list[int] = []
    reported: list[float] = []
    versions: list[int] = []
    last, longest = time.monotonic(), 0.0
    async with http.post(f"{node.address}/v1/completions", json=body) as answer:
        async for line in answer.content:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            for choice in event["choices"]:
                new = choice["token_ids"] or []
                ids, reported = ids + new, reported + (choice["logprobs"] or {}).get("token_logprobs", [])
                versions += [event["weight_version"]] * len(new)
            now = time.monotonic()
            if begun.is_set():  # before, it is the prompts that are waited for
                longest = max(longest, now - last)
            last = now
            if len(ids) > BEGUN:
                begun.set()
    runs = tuple(
        VersionSpan(
            version=version, start=versions.index(version), end=versions.index(version) + versions.count(version)
        )
        for version in dict.fromkeys(versions)
    )
    call = ModelCall(
        index=number, model="policy", node=node.id, prompt_ids=array("I", prompt).tobytes(), weight_versions=runs,
        response_ids=array("I", ids).tobytes(), logprobs=array("f", reported).tobytes(),
    )  # fmt: skip
    return call, longest


def mismatch(
    model: Path, weights: list[dict[str, Any]], calls: list[ModelCall], version: int, device: str = "cpu"
) -> dict[str, Any]:
    """k3 of the tokens before and after the swap, the learner's log-probabilities being of each token's version.

    Raises ValueError where the answers ended before the swap.
    """
    import torch
    from transformers import AutoModelForCausalLM

    dtype = torch.float32 if device == "cpu" else "auto"
    policy: Any = AutoModelForCausalLM.from_pretrained(model, dtype=dtype)
    policy = policy.to(device)
    rows, _ = build_sequences("r", build_transitions(calls), SequenceConfig(mode="transition"))
    parts: dict[int, list[np.ndarray[Any, Any]]] = {version - 1: [], version: []}
    for number, actual in parts.items():
        policy.load_state_dict(weights[number], strict=False)
        for row in rows:
            chosen = row.trained & (row.weight_versions == number)
            actual.append(_log_probs(policy, row)[chosen] - row.logprobs[chosen])
    before, after = (np.concatenate(parts[number]) for number in (version - 1, version))
    if not len(before) or not len(after):
        raise ValueError("the swap did not come amid the answers: let them be longer")
    k3 = [float(np.mean(np.exp(d) - d - 1)) for d in (before, after)]
    return {"tokens_after": len(after), "k3_before": k3[0], "k3_after": k3[1], "largest_after": float(abs(after).max())}


def _log_probs(policy: Any, row: TrainSequence) -> Any:
    import torch

    ids = torch.from_numpy(row.token_ids).to(policy.device)
    values = np.zeros(len(row.token_ids))
    with torch.no_grad():
        logits = policy(input_ids=ids[None]).logits[0, :-1]
        for first in range(0, len(logits), LOGITS_CHUNK):
            chunk = slice(first, first + LOGITS_CHUNK)
            log_probs = torch.log_softmax(logits[chunk].double(), -1)
            chosen = log_probs.gather(1, ids[1:][chunk, None])[:, 0]
            values[1:][chunk] = chosen.cpu().numpy()
    return values


def moved(weights: dict[str, Any], deviation: float, seed: int) -> dict[str, Any]:
    """The weights with noise on every one."""
    import torch

    torch.manual_seed(seed)
    return {name: tensor + deviation * torch.randn_like(tensor) for name, tensor in weights.items()}


def relative_change(old: dict[str, Any], new: dict[str, Any]) -> float:
    """The norm of the difference over the norm."""
    import torch

    difference = torch.cat([(new[name] - old[name]).flatten() for name in old])
    return float(difference.norm() / torch.cat([tensor.flatten() for tensor in old.values()]).norm())


async def put(at: LocalStack, path: Path, weights: dict[str, Any], version: int) -> Blob:
    """The bytes of a version onto the bus."""
    from safetensors.torch import save_file

    save_file(weights, path / "published.safetensors")
    return await at.bus.object_store.put(
        subjects.WEIGHT_BUCKET, f"policy-{version:06d}-1", path / "published.safetensors"
    )


async def announce(at: LocalStack, blob: Blob, version: int, change: float | None = None) -> Heartbeat:
    """A version; the node once it serves it."""
    manifest = WeightManifest(
        run_id="bench",
        model="policy",
        version=version,
        parent=version - 1 if version else None,
        change=change,
        blobs=(blob,),
        epoch=1,
        step=version,
        created_at_ns=time.time_ns(),
    )
    async with Bus.connect(at.url, credentials=at.find_credentials("learner")) as learner:
        newest = await learner.get_last(subjects.WEIGHTS, subjects.weights("policy"), WeightManifest)
        last = newest[1] if newest is not None else 0
        await learner.publish(subjects.weights("policy"), manifest, msg_id=f"w{version}", expect_last=last)
    return await at.wait_for_member(
        lambda beat: beat.role == "inference" and beat.version == version, f"version {version}", 300
    )
