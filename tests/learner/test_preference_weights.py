"""Direct preference optimization: each step has the gradient of the paper's formula, however rows are cut."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from lightningbus.learner.batching.batch import Batch
from lightningbus.learner.batching.demonstrations import Demonstration
from lightningbus.learner.batching.pass_order import drop_pass
from lightningbus.learner.batching.preferences import Pair, Preference, Preferences
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.learner.training.preference_weights import weigh_pairs
from lightningbus.learner.training.verl_trainer import VerlTrainer
from lightningbus.learner.transitions.chats import demonstrated_call
from tests.learner.conftest import LEARNING_RATE, settings_for
from tests.learner.reference import Named
from tests.learner.test_loss_parts import CUTS, outputs_by_ranks
from tests.learner.test_trainer import close, gradient_of, masters

BETA = 0.3


def answers(count: int = 5) -> list[Preference]:
    """Pairs of answers to one prompt, of one to three turns that extend each other and of different lengths."""
    rng = np.random.default_rng(7)

    def answer(name: str, prompt: list[int], num_turns: int) -> Demonstration:
        calls, context = [], prompt
        for index in range(num_turns):
            response = rng.integers(1, 64, rng.integers(2, 9)).tolist()
            calls.append(demonstrated_call(index, context, response))
            context = [*context, *response, *rng.integers(1, 64, 3).tolist()]
        return Demonstration(name, calls)

    built = []
    for number in range(count):
        prompt = rng.integers(1, 64, 12).tolist()
        turns = rng.integers(1, 4, 2).tolist()
        built.append(
            Preference(answer(f"{number}/chosen", prompt, turns[0]), answer(f"{number}/rejected", prompt, turns[1]))
        )
    return built


def preferring(
    model_path: Path, batch_size: int = 4, path: Path = Path("pairs.jsonl"), **changes: Any
) -> LearnerSettings:
    """Settings of a learner on pairs."""
    fields = {"path": path, "batch_size": batch_size, "beta": BETA}
    return settings_for(model_path, groups_per_step=0, preferences=fields, **changes)


def batch_of(preferences: Preferences, step: int) -> Batch:
    sequences, pairs = preferences.take(step)
    return Batch(sequences, {}, pairs=pairs)


class Plain:
    """The loss of the paper in plain torch, call by call, with the start model beside the trained one."""

    def __init__(self, model_path: Path, members: Sequence[Preference]) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
        self._start = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
        self._calls = {each.id: each.calls for pair in members for each in (pair.chosen, pair.rejected)}

    def _sum(self, model: Any, name: str) -> torch.Tensor:
        total = torch.zeros(())
        for call in self._calls[drop_pass(name)]:
            ids = torch.tensor(np.concatenate([call.prompt_ids, call.response_ids]))[None]
            every = torch.log_softmax(model(input_ids=ids).logits[0, len(call.prompt_ids) - 1 : -1], -1)
            total = total + every.gather(1, torch.tensor(call.response_ids)[:, None]).sum()
        return total

    def loss(self, pairs: Sequence[Pair]) -> tuple[torch.Tensor, torch.Tensor]:
        """The mean loss over pairs, and beta times each pair's delta."""
        margins = []
        for pair in pairs:
            with torch.no_grad():
                start = self._sum(self._start, pair.chosen) - self._sum(self._start, pair.rejected)
            margins.append(BETA * (self._sum(self.model, pair.chosen) - self._sum(self.model, pair.rejected) - start))
        stacked = torch.stack(margins)
        return -torch.nn.functional.logsigmoid(stacked).mean(), stacked.detach()

    def train(self, batches: Sequence[Sequence[Pair]]) -> Named:
        """Train as anyone would in torch: AdamW on the pairs of each batch, with clipped gradients."""
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
        for pairs in batches:
            loss, _ = self.loss(pairs)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        return dict(self.model.state_dict())


def started(settings: LearnerSettings, preferences: Preferences) -> VerlTrainer:
    trainer = VerlTrainer(settings)
    trainer.record_reference(preferences.sequences)
    return trainer


@pytest.mark.parametrize("cut", [*CUTS, "micro-batches of two answers"])
def test_the_gradient_is_the_papers(model_path: Path, cut: str) -> None:
    """Away from the start, where pairs weigh differently; in any order of rows."""
    changes = CUTS.get(cut, {"actor": {"ppo_max_token_len_per_gpu": 128}})
    settings = preferring(
        model_path,
        actor={"optim": {"lr": 0.02}, **changes.get("actor", {})},
        **{name: value for name, value in changes.items() if name != "actor"},
    )
    members = answers()
    preferences = Preferences(members, settings)
    trainer = started(settings, preferences)
    first = trainer.step(batch_of(preferences, 0))
    assert first["actor/loss"] == pytest.approx(np.log(2), abs=1e-4) and first["preference/margin"] == pytest.approx(
        0, abs=1e-4
    )
    plain = Plain(model_path, members)
    plain.model.load_state_dict({**plain.model.state_dict(), **masters(trainer)})
    batch = batch_of(preferences, 1)
    order = np.random.default_rng(2).permutation(len(batch.sequences))
    shuffled = replace(batch, sequences=[batch.sequences[place] for place in order])
    metrics, (actual,) = gradient_of(trainer, shuffled)
    loss, margins = plain.loss(batch.pairs)
    loss.backward()
    assert float(margins.abs().max()) > 0.1, "the pairs weigh differently"
    assert metrics["actor/loss"] == pytest.approx(loss.item(), rel=1e-4)
    assert metrics["preference/margin"] == pytest.approx(float(margins.mean()), rel=1e-3)
    assert metrics["preference/accuracy"] == pytest.approx(float((margins > 0).float().mean()))
    difference = metrics["preference/chosen_reward"] - metrics["preference/rejected_reward"]
    assert difference == pytest.approx(metrics["preference/margin"])
    assert "actor/ce_loss" not in metrics and "actor/pg_loss" not in metrics
    close(actual, {name: part.grad for name, part in plain.model.named_parameters() if name in actual})


def test_steps_reach_what_a_plain_loop_does(model_path: Path) -> None:
    settings = preferring(model_path, batch_size=2)
    members = answers()
    preferences = Preferences(members, settings)
    trainer, plain = started(settings, preferences), Plain(model_path, members)
    batches = [batch_of(preferences, step) for step in range(6)]
    for batch in batches:
        trainer.step(batch)
    expected = plain.train([batch.pairs for batch in batches])
    for name, weights in masters(trainer).items():
        torch.testing.assert_close(weights, expected[name], atol=0.1 * LEARNING_RATE, rtol=1e-3)


def test_pairs_far_apart_have_finite_weights() -> None:
    pairs = [Pair("a#0", "b#0"), Pair("c#0", "d#0")]
    current = {"a#0": -5000.0, "b#0": -1.0, "c#0": -1.0, "d#0": -5000.0}
    reference = dict.fromkeys("abcd", -10.0)
    weights, metrics = weigh_pairs(pairs, current, reference, 1.0)
    assert weights == {"a#0": 0.5, "b#0": -0.5, "c#0": 0.0, "d#0": -0.0}
    assert metrics["actor/loss"] == pytest.approx(4999 / 2) and metrics["preference/accuracy"] == 0.5


@pytest.mark.integration
@pytest.mark.long
def test_two_ranks_make_the_update_of_one_rank(tmp_path: Path) -> None:
    outs = outputs_by_ranks(tmp_path, "pairs")
    close(outs[1]["gradient"], outs[0]["gradient"])
    alone, together = (json.loads(out["metrics"]) for out in outs)
    assert abs(alone["preference/margin"]) > 0.01, "the answers have moved"
    for name, value in alone.items():
        if name.startswith("preference/") or name == "actor/loss":
            assert together[name] == pytest.approx(value, rel=1e-4, abs=1e-6)
