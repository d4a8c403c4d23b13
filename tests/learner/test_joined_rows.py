"""Rollouts of one prompt are trained in joined rows: fewer tokens, the same gradient."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lightningbus.learner.model_check.check import ModelCheckError, check_model
from lightningbus.learner.rollouts.assembler import Rollout
from lightningbus.learner.training.joined_rows import join_rows
from lightningbus.learner.training.tensors import TokenInputs
from lightningbus.learner.training.verl_trainer import VerlTrainer
from lightningbus.learner.transitions.sequences import TrainSequence
from tests.factories import model_call, rollout
from tests.learner.conftest import settings_for
from tests.learner.reference import Rule, gradient
from tests.learner.test_trainer import batch_of, close, gradient_of, sampled_by

PROMPT = 20


def groups_of_two_turns() -> list[Rollout]:
    """Two groups of four rollouts, each of two calls; a group has one first prompt."""
    rng = np.random.default_rng(0)
    built = []
    for number in range(8):
        if number % 4 == 0:
            prompt = rng.integers(1, 64, PROMPT).tolist()
        answer = rng.integers(1, 64, rng.integers(2, 7)).tolist()
        later = prompt + answer + rng.integers(1, 64, 3).tolist()
        calls: list[Any] = [model_call(0, prompt, answer), model_call(1, later, rng.integers(1, 64, 4).tolist())]
        built.append(rollout(f"task{number // 4}", number % 4, float(number % 3 == 0), calls=calls))
    return built


@pytest.mark.parametrize(
    "rule",
    [Rule(), Rule(bypass=False), Rule(kl=0.1, entropy=0.05), Rule(loss="gspo", agg="token-mean")],
    ids=["PPO", "decoupled", "KL and entropy", "gspo"],
)
@pytest.mark.parametrize("limit", [128, 64])
def test_the_gradient_of_joined_rows_is_the_plain_references(
    start: Callable[..., VerlTrainer], model_path: Path, rule: Rule, limit: int
) -> None:
    """With all rows in one micro-batch, and cut by the bound of tokens."""
    settings: dict[str, Any] = {
        "actor": {
            "policy_loss": rule.loss,
            "loss_agg_mode": rule.agg,
            "use_kl_loss": rule.kl > 0,
            "kl_loss_coef": rule.kl,
            "entropy_coeff": rule.entropy,
            "ppo_max_token_len_per_gpu": limit,
            "old_log_prob_interval": 10**6,
        },
        "algorithm": {"rollout_correction": {"bypass_mode": rule.bypass}},
    }
    trainer = start(engine={"share_prefixes": True}, **settings)
    rollouts = sampled_by(trainer, groups_of_two_turns(), shift=0.9)
    batch = batch_of(trainer, rollouts)
    expected_loss, expected = gradient(model_path, rollouts, batch.advantages, rule)
    seen: list[int] = []
    hook = trainer._engine.module.register_forward_pre_hook(
        lambda _, __, named: seen.append(named["input_ids"].numel()), with_kwargs=True
    )
    metrics, (actual,) = gradient_of(trainer, batch)
    hook.remove()
    assert metrics["actor/loss"] == pytest.approx(expected_loss, rel=1e-4, abs=1e-6)
    close(actual, {name: part for name, part in expected.items() if name in actual})
    assert max(seen) <= limit
    whole = sum(len(row.token_ids) for row in batch.sequences)
    assert limit < 128 or seen[-1] < 0.6 * whole
    apart = start(**settings).log_probs(batch.sequences)
    for row, joined, alone in zip(batch.sequences, trainer.log_probs(batch.sequences), apart, strict=True):
        np.testing.assert_allclose(joined[row.trained], alone[row.trained], atol=1e-5)


def test_a_critic_learns_from_joined_rows_what_it_learns_from_each(start: Callable[..., VerlTrainer]) -> None:
    losses = []
    for shares in (False, True):
        trainer = start(algorithm={"adv_estimator": "gae"}, engine={"share_prefixes": shares})
        metrics = trainer.step(batch_of(trainer, sampled_by(trainer, groups_of_two_turns(), shift=0.0)))
        losses.append((metrics["critic/vf_loss"], metrics["critic/grad_norm"], metrics["actor/grad_norm"]))
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def row(prompt: Sequence[int], answer: Sequence[int], temperature: float = 1.0) -> TrainSequence:
    """A row whose answer is trained."""
    ids = np.array([*prompt, *answer])
    calls = np.where(np.arange(len(ids)) < len(prompt), -1, 0)
    return TrainSequence("r", temperature, ids, calls, np.zeros(len(ids), np.float32), np.zeros(len(ids), np.int64))


def test_rows_of_one_prompt_and_temperature_are_joined_up_to_the_bound() -> None:
    prompt, other = list(range(10)), list(range(1, 11))
    rows = [row(prompt, [1, 2]), row(other, [3]), row(prompt, [4]), row(prompt, [5], 0.5), row(prompt, [6] * 9)]
    inputs = TokenInputs(rows, {"weights": [np.arange(len(item.token_ids)) for item in rows]})
    joined = join_rows(inputs, max_tokens=20)
    assert [item.token_ids.tolist() for item in joined.inputs.sequences] == [
        [*prompt, 1, 2, 9, 4],
        [*other, 3],
        [*prompt, 5],
        [*prompt, *[6] * 9],
    ]
    assert joined.inputs.fields["position_ids"][0].tolist() == [*range(12), 9, 10]
    assert joined.inputs.fields["weights"][0].tolist() == [*range(12), 9, 10]
    values = [np.arange(len(item.token_ids), dtype=np.float32) for item in joined.inputs.sequences]
    assert joined.split(values)[2].tolist() == [0] * 10 + [13]
    assert len(join_rows(inputs, max_tokens=0).inputs.sequences) == len(rows)


def test_models_whose_tokens_see_each_other_by_more_than_attention_do_not_share(
    model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lightningbus.learner.engine import packed_attention

    def settings(**engine: Any) -> Any:
        return settings_for(model_path, checkpoint_dir=tmp_path, engine={"check_model": True, **engine})

    assert check_model(settings(), "cpu").settings.engine.share_prefixes is True
    assert check_model(settings(share_prefixes=False), "cpu").settings.engine.share_prefixes is False
    monkeypatch.setattr(packed_attention, "_find_shared", lambda _, lengths: [0] * len(lengths))
    assert check_model(settings(), "cpu").settings.engine.share_prefixes is False
    with pytest.raises(ModelCheckError, match=r"engine\.share_prefixes: false"):
        check_model(settings(share_prefixes=True), "cpu")
    with pytest.raises(ValueError, match="share_prefixes needs packed rows"):
        settings(share_prefixes=True, use_remove_padding=False)


def test_only_asked_tokens_get_logits(start: Callable[..., VerlTrainer]) -> None:
    trainer = start()
    sizes: list[torch.Size] = []
    hook = trainer._engine.module.register_forward_hook(lambda _, __, out: sizes.append(out.logits.shape))
    rows = [row(list(range(1, 11)), [3, 4]), row([7, 8, 9], [5])]
    values = trainer.log_probs(rows)
    hook.remove()
    assert sizes[0][1] == 3
    assert [np.flatnonzero(part).tolist() for part in values] == [[10, 11], [3]]
