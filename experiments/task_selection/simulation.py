"""``python -m experiments.task_selection.simulation``: the job's learning rates, without broker and learner.

The same model, tasks, settings and choice of tasks. Sampling and steps take turns in one process, with the loss of the
settings written out. A run takes seconds, so ten seeds other than those of the experiment say which rate is the best.
"""

import argparse
import asyncio
import tempfile
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import torch
from transformers import Qwen2ForCausalLM

from experiments.task_selection.job import (
    ARMS,
    CLASSES,
    GROUPS,
    MAX_STEPS,
    NUM_OPEN,
    NUM_TASKS,
    SAMPLES,
    TARGET,
    VOCABULARY,
    make_model,
    make_settings,
    make_tasks,
)
from lightningbus.learner.selection.selector import TaskSelector
from lightningbus.learner.selection.task_order import TaskOrder
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.tasks.task_loading import TaskInput

MAX_TOKENS = 2 * MAX_STEPS * GROUPS * SAMPLES
"""Tokens after which a run has failed: twice those of all steps without replacements."""


@dataclass
class Group:
    """Tokens that were sampled for a task, ``n`` of each."""

    index: int
    tokens: np.ndarray[Any, Any]
    logprobs: np.ndarray[Any, Any]
    rewards: np.ndarray[Any, Any]

    @property
    def has_signal(self) -> bool:
        return bool(self.rewards.min() < self.rewards.max())


@dataclass
class Groups:
    """Groups under way: as many as the bound on staleness admits are selected before they are sampled."""

    settings: LearnerSettings
    tasks: list[dict[str, Any]]
    rng: np.random.Generator
    queue: deque[int] = field(default_factory=deque)
    ready: list[Group] = field(default_factory=list)
    num_selected: int = 0
    num_tokens: int = 0
    num_replaced: int = 0

    def __post_init__(self) -> None:
        self.selector = TaskSelector([TaskInput(task["id"], task["input"]) for task in self.tasks], self.settings)
        self._order = TaskOrder(NUM_TASKS, self.settings.seed)

    async def take(self, probabilities: np.ndarray[Any, Any]) -> list[Group]:
        """Take the groups of a step; the next ones are sampled by the same version while it is trained."""
        self.num_replaced = 0
        while len(self.ready) < GROUPS:
            await self._select(self.settings.num_groups_under_way)
            self._sample(probabilities)
        batch, self.ready = self.ready[:GROUPS], self.ready[GROUPS:]
        await self._select(self.settings.num_groups_under_way - GROUPS)
        while self.queue:
            self._sample(probabilities)
        return batch

    def add_results(self, group: Group) -> None:
        self.selector.add(self.tasks[group.index]["id"], group.rewards.tolist())

    async def _select(self, num_groups: int) -> None:
        while len(self.queue) + len(self.ready) < num_groups:
            selection = await self.selector.select(self.num_selected)
            _, index = self._order.at(self.num_selected)
            self.queue.append(index if selection is None else int(selection.task[1:]))
            self.num_selected += 1

    def _sample(self, probabilities: np.ndarray[Any, Any]) -> None:
        index = self.queue.popleft()
        tokens = self.rng.choice(VOCABULARY, SAMPLES, p=probabilities[index])
        task = self.tasks[index]["input"]
        is_right = tokens % CLASSES == task["right"]
        rewards = {"open": is_right, "hopeless": is_right & False, "trivial": is_right | True}[task["kind"]]
        group = Group(index, tokens, np.log(probabilities[index][tokens]), rewards.astype(float))
        self.num_tokens += SAMPLES
        can_replace = self.num_replaced < self.settings.max_replaced_per_step
        if self.settings.task_selection.replace_without_signal and can_replace and not group.has_signal:
            self.num_replaced += 1
            self.add_results(group)
        else:
            self.ready.append(group)


async def simulate(arm: str, seed: int, learning_rate: float, model_path: Path) -> tuple[int | None, int]:
    """Return the tokens until the target, None where it was not reached, and those of the whole run."""
    settings = make_settings(arm, seed, learning_rate, model_path.parent)
    groups = Groups(settings, make_tasks(seed), np.random.default_rng(seed))
    model = Qwen2ForCausalLM.from_pretrained(model_path)
    optimizer = torch.optim.AdamW(model.parameters(), learning_rate, weight_decay=0.0)
    prompts = torch.tensor([task["input"]["prompt"] for task in groups.tasks])
    right = torch.tensor([task["input"]["right"] for task in groups.tasks[:NUM_OPEN]])
    curve: list[float] = []
    for _ in range(MAX_STEPS):
        with torch.no_grad():
            probabilities = torch.softmax(model(prompts).logits[:, -1].double(), -1)
        by_class = probabilities[:NUM_OPEN].reshape(NUM_OPEN, -1, CLASSES).sum(1)
        curve.append(float(by_class.gather(1, right[:, None]).mean()))
        if len(curve) >= 3 and sum(curve[-3:]) / 3 >= TARGET:
            return groups.num_tokens, groups.num_tokens
        if groups.num_tokens > MAX_TOKENS:
            break
        batch = await groups.take(probabilities.numpy())
        optimizer.zero_grad()
        compute_loss(model, prompts, batch, settings).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.actor.optim.clip_grad)
        optimizer.step()
        for group in batch:
            groups.add_results(group)
    return None, groups.num_tokens


def compute_loss(
    model: Qwen2ForCausalLM, prompts: torch.Tensor, batch: list[Group], settings: LearnerSettings
) -> torch.Tensor:
    """Compute PPO's clipped loss with GRPO's advantages, each rollout being one token."""
    rewards, old, tokens = (
        torch.tensor(np.array([getattr(group, name) for group in batch])) for name in ("rewards", "logprobs", "tokens")
    )
    advantages = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-6)
    logits = model(prompts[[group.index for group in batch]]).logits[:, -1]
    ratio = (torch.log_softmax(logits, -1).gather(1, tokens) - old).exp()
    clipped = ratio.clamp(1 - settings.actor.clip_ratio_low, 1 + settings.actor.clip_ratio_high)
    return -torch.minimum(ratio * advantages, clipped * advantages).mean()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[*range(5, 15)])
    parser.add_argument("--learning-rates", type=float, nargs="+", default=[1e-3, 1.4e-3, 2e-3, 2.8e-3, 4e-3])
    options = parser.parse_args()
    torch.set_num_threads(1)
    columns = (f"{arm}: came to {TARGET} | mean tokens | median" for arm in ARMS)
    print(f"| learning rate | {' | '.join(columns)} |\n|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        model_path = make_model(Path(folder) / "model")
        for rate in options.learning_rates:
            cells = []
            for arm in ARMS:
                runs = [asyncio.run(simulate(arm, seed, rate, model_path)) for seed in options.seeds]
                tokens = [num_tokens for _, num_tokens in runs]
                num_reached = sum(num_to_target is not None for num_to_target, _ in runs)
                cells.append(f"{num_reached} of {len(runs)} | {mean(tokens):,.0f} | {median(tokens):,.0f}")
            print(f"| {rate:g} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
