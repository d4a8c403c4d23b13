"""A calculator that is mostly wrong, taught by one that is right: rollouts until it is as good, beside GRPO's.

The model of 64 tokens adds two digits. Rollouts are sampled from the learner's own weights, and go through groups,
batches, the teacher's server and the trainer as in a run.
"""

import itertools
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from transformers import AutoModelForCausalLM

from lightningbus.learner.rollouts.groups import RolloutGroup
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.learner.teacher.teacher import Teacher
from lightningbus.learner.training.verl_trainer import VerlTrainer
from tests.factories import group, model_call, rollout
from tests.learner.conftest import builder_for, settings_for, tiny_model
from tests.learner.scripted_teacher import ScriptedTeacher

PLUS, EQUALS, ZERO = 60, 61, 10
PROBLEMS = list(itertools.product(range(10), range(10)))
TASKS, SAMPLES, MAX_STEPS, TARGET = 8, 8, 400, 0.95


def prompt(problem: tuple[int, int]) -> list[int]:
    return [ZERO + problem[0], PLUS, ZERO + problem[1], EQUALS]


def answer(problem: tuple[int, int]) -> int:
    return ZERO + sum(problem)


PROMPTS = torch.tensor([prompt(problem) for problem in PROBLEMS])
ANSWERS = torch.tensor([answer(problem) for problem in PROBLEMS])


def answer_probabilities(model: Any) -> torch.Tensor:
    """The distribution of the answer to every problem."""
    with torch.no_grad():
        return torch.softmax(model(input_ids=PROMPTS).logits[:, -1], -1)


def accuracy(model: Any) -> float:
    """Share of right answers at temperature 1, as expected."""
    return float(answer_probabilities(model).gather(1, ANSWERS[:, None]).mean())


def warm_start(path: Path, share_right: float, seed: int) -> Path:
    """A model whose answers are right with about this probability, else another sum."""
    tiny_model(path)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    torch.manual_seed(seed)
    target = torch.zeros(len(PROBLEMS), 64)
    target[:, ZERO : ZERO + 19] = (1 - share_right) / 18
    target[torch.arange(len(PROBLEMS)), ANSWERS] = share_right
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(600):
        loss = torch.nn.functional.cross_entropy(model(input_ids=PROMPTS).logits[:, -1], target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if abs(accuracy(model) - share_right) < 0.02 and loss < 0.05 + float(
            torch.distributions.Categorical(probs=target + 1e-9).entropy().mean()
        ):
            break
    model.save_pretrained(path)
    return path


def sample(model: Any, problems: Sequence[tuple[int, int]], step: int, version: int) -> list[RolloutGroup]:
    """A group for each problem, of answers that the model samples."""
    probabilities, groups = answer_probabilities(model), []
    for number, problem in enumerate(problems):
        row = probabilities[PROBLEMS.index(problem)]
        task, members = f"{step}-{number}", []
        for index in range(SAMPLES):
            token = int(torch.multinomial(row, 1))
            call = replace(
                model_call(0, prompt(problem), [token], version, sampling_params={"temperature": 1.0}),
                logprobs=array("f", [float(row[token].log())]).tobytes(),
            )
            members.append(rollout(task, index, float(token == answer(problem)), samples=SAMPLES, calls=[call]))
        groups.append(group(task, *members))
    return groups


async def rollouts_to_target(settings: LearnerSettings, target: float, seed: int, url: str | None) -> int:
    """Train until answers are right as often as the target; return the rollouts that it took."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    trainer, builder = VerlTrainer(settings), builder_for(settings)
    teacher = Teacher(settings, lambda: url) if url is not None else None
    model = AutoModelForCausalLM.from_pretrained(settings.model_path, dtype=torch.float32)
    for step in range(MAX_STEPS):
        if accuracy(model) >= target:
            break
        chosen = [PROBLEMS[place] for place in rng.integers(0, len(PROBLEMS), TASKS)]
        groups = sample(model, chosen, step, step)
        if teacher is not None:
            await teacher.score(groups)
        trainer.step(builder.build(groups, step))
        named = dict(trainer._engine.module.named_parameters())
        state = {name: part.full_tensor() if hasattr(part, "full_tensor") else part for name, part in named.items()}
        model.load_state_dict(state, strict=False)
    else:
        pytest.fail(f"the target {target:.2f} was not reached: {accuracy(model):.2f} after {MAX_STEPS} steps")
    if teacher is not None:
        await teacher.close()
    return step * TASKS * SAMPLES


@pytest.mark.parametrize(
    "seed",
    [pytest.param(0, marks=pytest.mark.long), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 5))],
)
@pytest.mark.timeout(3600)
async def test_a_teacher_needs_a_fifth_of_the_rollouts_of_grpo(tmp_path: Path, seed: int) -> None:
    good, wrong = warm_start(tmp_path / "good", 0.97, seed), warm_start(tmp_path / "wrong", 0.2, seed)
    target = TARGET * accuracy(AutoModelForCausalLM.from_pretrained(good, dtype=torch.float32))
    before = accuracy(AutoModelForCausalLM.from_pretrained(wrong, dtype=torch.float32))
    shared: dict[str, Any] = {
        "group_size": SAMPLES, "groups_per_step": TASKS, "checkpoint_dir": tmp_path / "checkpoints",
        "actor": {"optim": {"lr": 1e-3}, "ppo_max_token_len_per_gpu": 512, "old_log_prob_interval": 10**6},
    }  # fmt: skip
    async with ScriptedTeacher(good) as server:
        fields = {"teacher": {"url": server.url}, "loss_weights": {"rl": 0.0}, **shared}
        taught = await rollouts_to_target(settings_for(wrong, **fields), target, seed, server.url)
    alone = await rollouts_to_target(settings_for(wrong, **shared), target, seed, None)
    print(f"seed {seed}: from {before:.2f} to {target:.2f}: {taught} rollouts with a teacher, {alone} by GRPO")
    assert taught <= alone / 5
