"""A job of forty tasks of which 70 % teach nothing: a real learner and broker, and a model that is sampled in place.

A task is a prompt of three tokens. An answer is one token, of one of four classes. Twelve tasks are open: one class is
right, and the model learns which. Fourteen are hopeless (no class is right), and fourteen trivial (each is).
"""

import asyncio
import json
import random
from array import array
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

from lightningbus.bus.client import Bus
from lightningbus.bus.embedded.nats_server import nats_server
from lightningbus.bus.streams.specs import STORE_EVENTS, runner_consumer
from lightningbus.bus.weights.registry import WeightRegistry
from lightningbus.bus.weights.transports.factory import open_transport
from lightningbus.common.aio import cancel_and_wait, first_completed
from lightningbus.learner.learner import run as run_learner
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.schemas import ids, subjects
from lightningbus.schemas.spans import AttemptResult, ModelCall, Span, SpanBatch, VersionSpan
from lightningbus.schemas.tasks import Task
from lightningbus.schemas.training import TaskDecision, TrainingStep
from lightningbus.schemas.weights.events import WeightManifest

NUM_OPEN, NUM_HOPELESS, NUM_TRIVIAL = 12, 14, 14
NUM_TASKS = NUM_OPEN + NUM_HOPELESS + NUM_TRIVIAL
CLASSES, VOCABULARY = 4, 64
GROUPS, SAMPLES = 4, 8
TARGET = 0.9
MAX_STEPS = 400
ARMS: dict[str, dict[str, Any]] = {
    "uniform": {},
    "difficulty": {"sampler": "difficulty", "replace_without_signal": True},
}


def make_model(path: Path) -> Path:
    """Make a model that gives each class about a quarter."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    config = Qwen2Config(
        vocab_size=VOCABULARY, num_key_value_heads=1, max_position_embeddings=128, tie_word_embeddings=True,
        dtype="float32", **sizes,
    )  # fmt: skip
    model: Any = Qwen2ForCausalLM(config)
    model.to(torch.float32).save_pretrained(path)
    tokenizer: Any = Qwen2Tokenizer().train_new_from_iterator(["a"], 300, show_progress=False)
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    tokenizer.save_pretrained(path)
    return path


def make_tasks(seed: int) -> list[dict[str, Any]]:
    """Make the tasks of a seed: prompts and right classes differ."""
    rng = random.Random(f"tasks:{seed}")
    pairs = rng.sample([(first, second) for first in range(VOCABULARY) for second in range(VOCABULARY)], NUM_TASKS)
    kinds = ["open"] * NUM_OPEN + ["hopeless"] * NUM_HOPELESS + ["trivial"] * NUM_TRIVIAL
    return [
        {
            "id": f"q{number}",
            "input": {"prompt": [1, *pair], "kind": kind, "right": rng.randrange(CLASSES)},
            "labels": {"kind": kind},
        }
        for number, (pair, kind) in enumerate(zip(pairs, kinds, strict=True))
    ]


def make_settings(arm: str, seed: int, learning_rate: float, place: Path) -> LearnerSettings:
    """Make the learner's settings for a run whose files are in ``place``."""
    return LearnerSettings.model_validate(
        {
            "model_path": place / "model",
            "tasks": place / "tasks.jsonl",
            "group_size": SAMPLES,
            "groups_per_step": GROUPS,
            "max_steps": MAX_STEPS,
            "max_staleness": 1,
            "task_selection": ARMS[arm],
            "seed": seed,
            "seq_len": 64,
            "cpu_threads": 1,
            "checkpoint_dir": place / "checkpoints",
            "checkpoint_interval": MAX_STEPS,
            "weights": {"full_interval": 1},
            "engine": {"check_model": False},
            "actor": {"optim": {"lr": learning_rate}, "ppo_max_token_len_per_gpu": 2048},
        }
    )


@dataclass
class Job:
    """One run: the agents that sample, the record of what the learner published, and how far the policy is."""

    bus: Bus
    model: Qwen2ForCausalLM
    tasks: list[dict[str, Any]]
    folder: Path
    rng: random.Random
    version: int = -1
    num_tokens: int = 0
    rollouts_by_kind: dict[str, int] = field(default_factory=dict)
    curve: list[tuple[int, int, float]] = field(default_factory=list)
    """Version, tokens sampled by the time it was loaded, and accuracy on the open tasks."""
    num_selected: int = 0
    num_without_signal: int = 0
    num_steps: int = 0
    num_groups: int = 0
    is_reached: asyncio.Event = field(default_factory=asyncio.Event)

    async def sample(self) -> None:
        """Answer tasks by the newest version until cancelled."""
        async with self.bus.pull(runner_consumer("default", "train"), slots=SAMPLES) as puller:
            async for message in puller:
                task = message.decode_as(Task)
                await self._load_newest()
                await message.ack()
                await self._answer(task)

    async def listen(self) -> None:
        """Count the learner's events until cancelled."""
        async with self.bus.pull(replace(STORE_EVENTS, durable="listener"), slots=32) as puller:
            async for message in puller:
                event = message.event()
                await message.ack()
                self.num_steps += isinstance(event, TrainingStep) and bool(event.batch_sha256)
                if isinstance(event, TaskDecision):
                    self.num_selected += event.decision == "selected"
                    self.num_without_signal += event.decision == "without_signal"

    async def _load_newest(self) -> None:
        newest = await self.bus.get_last(subjects.WEIGHTS, subjects.weights("policy"), WeightManifest)
        assert newest is not None
        if newest[0].version == self.version:
            return
        (manifest,) = [each async for each, _ in WeightRegistry(self.bus, "policy").list_versions()][:1]
        path = self.folder / "newest.safetensors"
        await open_transport(self.bus, manifest.transport, manifest.location).get(manifest.blobs[0], path)
        self.model.load_state_dict(load_file(path), strict=False)
        self.version = manifest.version
        self.curve.append((self.version, self.num_tokens, self._measure()))
        if self.tokens_to_target is not None:
            self.is_reached.set()

    @property
    def tokens_to_target(self) -> int | None:
        """Tokens that were sampled when three versions in a row were at the target on average; None: not yet."""
        for first in range(len(self.curve) - 2):
            three = self.curve[first : first + 3]
            if sum(accuracy for *_, accuracy in three) / 3 >= TARGET:
                return three[-1][1]
        return None

    def _probabilities(self, prompts: list[list[int]]) -> torch.Tensor:
        with torch.no_grad():
            return torch.softmax(self.model(torch.tensor(prompts)).logits[:, -1].float(), -1)

    def _measure(self) -> float:
        """Compute the mean probability of a right answer to an open task, exactly."""
        inputs = [task["input"] for task in self.tasks if task["input"]["kind"] == "open"]
        by_token = self._probabilities([each["prompt"] for each in inputs])
        by_class = by_token.reshape(len(inputs), VOCABULARY // CLASSES, CLASSES).sum(1)
        return float(sum(by_class[row, each["right"]] for row, each in enumerate(inputs)) / len(inputs))

    async def _answer(self, task: Task) -> None:
        probabilities = self._probabilities([task.input["prompt"]])[0]
        token = self.rng.choices(range(VOCABULARY), probabilities.tolist())[0]
        kind = task.input["kind"]
        reward = {"open": float(token % CLASSES == task.input["right"]), "hopeless": 0.0, "trivial": 1.0}[kind]
        self.num_tokens += 1
        self.num_groups += task.sample_index == 0
        self.rollouts_by_kind[kind] = self.rollouts_by_kind.get(kind, 0) + 1
        call = ModelCall(
            index=0, node="n", model="policy", request="", response="",
            prompt_ids=array("I", task.input["prompt"]).tobytes(), response_ids=array("I", [token]).tobytes(),
            logprobs=array("f", [float(probabilities[token].log())]).tobytes(),
            weight_versions=(VersionSpan(version=self.version, start=0, end=1),),
        )  # fmt: skip
        rollout = ids.rollout_id(task.id, task.sample_index)
        span = Span(trace_id="t", span_id="0", name="chat", call=call, start_ns=1, end_ns=2)
        result = AttemptResult(outcome="ok", is_final=True, reward=reward, num_spans=1, started_ns=1, ended_ns=2)
        batch = SpanBatch(
            run_id=task.run_id, task_id=task.id, rollout_id=rollout, sample_index=task.sample_index,
            group_size=task.group_size, attempt=1, execution_id=f"{rollout}-1", agent="default", mode="train",
            runner="r", sequence=0, spans=(span,), end=result,
        )  # fmt: skip
        await self.bus.publish(subjects.rollout("train"), batch, msg_id=f"{task.id}:{task.sample_index}")


async def train(arm: str, seed: int, learning_rate: float, place: Path) -> dict[str, Any]:
    """Train one arm with one seed and learning rate, until the target is reached; return what was measured."""
    place.mkdir(parents=True)
    model_path, tasks = make_model(place / "model"), make_tasks(seed)
    (place / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    settings = make_settings(arm, seed, learning_rate, place)
    async with nats_server(place / "nats") as server, Bus.connect(server.url, name="job") as bus:
        await bus.provision()
        await bus.ensure_consumer(runner_consumer("default", "train"))
        await bus.ensure_consumer(replace(STORE_EVENTS, durable="listener"))
        model = Qwen2ForCausalLM.from_pretrained(model_path).eval()
        job = Job(bus, model, tasks, place, random.Random(f"{arm}:{seed}"))
        work = [asyncio.create_task(each) for each in (job.sample(), job.listen())]
        try:
            async with Bus.connect(server.url, name="learner") as connected:
                stop = asyncio.Event()
                await first_completed(run_learner(connected, settings, stop), job.is_reached.wait(), *work)
        finally:
            await cancel_and_wait(*work)
    return {
        "arm": arm,
        "seed": seed,
        "learning_rate": learning_rate,
        "tokens_to_target": job.tokens_to_target,
        "tokens": job.num_tokens,
        "steps": job.num_steps,
        "rollouts_by_kind": job.rollouts_by_kind,
        "groups": job.num_groups,
        "selected": job.num_selected,
        "without_signal": job.num_without_signal,
        "first_accuracy": round(job.curve[0][2], 4),
        "last_accuracy": round(job.curve[-1][2], 4),
        "curve": [(version, tokens, round(accuracy, 4)) for version, tokens, accuracy in job.curve],
    }
