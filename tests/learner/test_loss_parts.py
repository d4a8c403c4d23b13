"""Reward, imitation and a teacher in one step: each mix has a plain reference's gradient, however rows are cut."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace as changed
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from lightningbus.learner.batching.batch import Batch
from lightningbus.learner.rollouts.assembler import Rollout
from lightningbus.learner.rollouts.teacher_scores import TeacherScores
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.learner.settings.loss_parts import Direction
from lightningbus.learner.training.mini_batches import split_mini_batches
from lightningbus.learner.training.teacher_loss import (
    BEHAVIOR,
    MAX_RATIO,
    MIN_REMAINDER,
    TEACHER,
    coarse_divergence,
    teacher_loss,
)
from lightningbus.learner.training.token_weights import KL
from lightningbus.learner.training.verl_trainer import VerlTrainer
from lightningbus.learner.transitions.sequences import SequenceConfig, TrainSequence, build_sequences
from lightningbus.learner.transitions.transitions import Transition, build_transitions
from tests.factories import group
from tests.learner.conftest import builder_for, settings_for
from tests.learner.reference import Named, Rule, gradient
from tests.learner.test_joined_rows import groups_of_two_turns
from tests.learner.test_trainer import close, conversations, gradient_of, sampled_by
from tests.polling import HANG_SECONDS

COEFFICIENTS = {"rl": 0.7, "ce": 0.4, "kl": 1.3}
MIXES = [("rl",), ("ce",), ("kl",), ("rl", "ce"), ("rl", "kl"), ("ce", "kl"), ("rl", "ce", "kl")]
MODES = ["seq-mean-token-mean", "seq-mean-token-sum", "token-mean"]
Start = Callable[..., VerlTrainer]


@pytest.mark.parametrize("gain", [-16.81, -30.0, -0.5, 0.0, 1.0, 4.0])
def test_a_teacher_far_away_has_its_whole_divergence(gain: float) -> None:
    """The k3 estimate of a sampled token is not cut at 10, which it is at a ratio of e^-11."""

    def nested(*values: float) -> torch.Tensor:
        return torch.nested.nested_tensor_from_jagged(torch.tensor(values), torch.tensor([0, len(values)]))

    data = {KL: nested(0, 1.0), TEACHER: nested(0, -1 + gain), BEHAVIOR: nested(0, -1.0), "dp_size": 1}
    _, divergence = teacher_loss({"log_probs": nested(-1.0, 0)}, data, "reverse")
    assert float(divergence) == pytest.approx(np.expm1(gain) - gain, rel=1e-5, abs=1e-6)


def transitions_of(rollouts: Sequence[Rollout], top_k: int = 0) -> dict[str, list[Transition]]:
    """Calls with a teacher's scores, but for those of every third rollout.

    With ``top_k``, one rollout in six has no likeliest tokens, and one in six has one token that the student lacks.
    """
    rng = np.random.default_rng(5)
    built = {}
    for number, item in enumerate(rollouts):
        calls = build_transitions(item.calls)
        if number % 3 != 2:
            calls = [changed(call, teacher_scores=random_scores(rng, call.num_tokens, top_k)) for call in calls]
        if top_k and number % 6 == 3:
            calls = [changed(call, teacher_scores=without_top(call.teacher_scores, 0)) for call in calls]
        if top_k and number % 6 == 4:
            calls = [changed(call, teacher_scores=without_top(call.teacher_scores, top_k - 1)) for call in calls]
        built[item.id] = calls
    return built


def random_scores(rng: np.random.Generator, num_tokens: int, top_k: int) -> TeacherScores:
    """Scores of which the likeliest tokens and the rest have any share."""
    logprobs = rng.uniform(-6, -1, num_tokens).astype(np.float32)
    ids = rng.permuted(np.tile(np.arange(64), (num_tokens, 1)), axis=1)[:, :top_k]
    tops = np.log(rng.dirichlet(np.ones(top_k + 1), num_tokens)[:, :top_k])
    return TeacherScores(logprobs, ids.astype(np.int32), tops.astype(np.float32))


def without_top(scores: TeacherScores | None, left: int) -> TeacherScores:
    """Scores with the first likeliest tokens alone: none narrower, some as without the others."""
    assert scores is not None
    if left == 0:
        return changed(scores, top_ids=scores.top_ids[:, :0], top_logprobs=scores.top_logprobs[:, :0])
    kept = np.where(np.arange(scores.top_k) < left, scores.top_logprobs, np.float32(-np.inf))
    return changed(scores, top_logprobs=kept)


def mixed_batch(
    trainer: VerlTrainer, rollouts: Sequence[Rollout], mix: Sequence[str], demonstrations: Sequence[Rollout]
) -> Batch:
    """A batch whose rollouts are scored by a teacher and partly imitated, with demonstrations that nobody sampled."""
    settings = trainer._settings
    top_k = max([0, *(each.top_k for each in settings.teachers)])
    groups = [group(task, *[item for item in rollouts if item.task_id == task]) for task in ("task0", "task1")]
    batch = builder_for(settings).build(groups, 0)
    rows: list[TrainSequence] = []
    config = SequenceConfig(mode=settings.sequence_mode, max_tokens=settings.seq_len, overlong="split")
    for rollout_id, calls in transitions_of(rollouts, top_k).items():
        scored = calls if "kl" in mix else [changed(call, teacher_scores=None) for call in calls]
        rows += build_sequences(rollout_id, scored, config)[0]
    imitated = {}
    if "ce" in mix:
        imitated = {key: 2.0 for key in batch.advantages if key[0].endswith(".1")}
        for item in demonstrations:
            calls = build_transitions(item.calls)
            rows += build_sequences("shown-" + item.id, calls, config)[0]
            imitated |= {("shown-" + item.id, call.index): 1.0 for call in calls}
    return changed(batch, sequences=rows, imitated=imitated)


def reference(
    model_path: Path, rollouts: Sequence[Rollout], demonstrations: Sequence[Rollout], batch: Batch, mode: str,
    top: tuple[Direction, int] = ("reverse", 0),
) -> tuple[float, Named]:  # fmt: skip
    """Loss and gradient, call by call: each part over its tokens, by its own denominator."""
    total, summed = gradient(model_path, rollouts, batch.advantages, Rule(agg=mode))
    total, summed = total * COEFFICIENTS["rl"], {name: part * COEFFICIENTS["rl"] for name, part in summed.items()}
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    scored = transitions_of(rollouts, top[1]) if any(row.teacher_scores for row in batch.sequences) else {}
    calls = [(name, call) for name, members in scored.items() for call in members if call.teacher_scores is not None]
    loss = _part(model, calls, {}, mode, top[0]) * COEFFICIENTS["kl"] if calls else torch.zeros(())
    demonstrated = {"shown-" + item.id: build_transitions(item.calls) for item in demonstrations}
    known = demonstrated | {item.id: build_transitions(item.calls) for item in rollouts}
    calls = [
        (name, call) for name, members in known.items() for call in members if (name, call.index) in batch.imitated
    ]
    if calls:
        loss = loss + _part(model, calls, batch.imitated, mode) * COEFFICIENTS["ce"]
    if loss.requires_grad:
        loss.backward()
        for name, part in model.named_parameters():
            if part.grad is not None:
                summed[name] = summed[name] + part.grad
    return total + float(loss.detach()), summed


def _part(
    model: Any, calls: Sequence[tuple[str, Transition]], imitated: dict[tuple[str, int], float], mode: str,
    direction: Direction = "reverse",
) -> torch.Tensor:  # fmt: skip
    tokens: dict[str, int] = {}
    for name, call in calls:
        tokens[name] = tokens.get(name, 0) + call.num_tokens
    total = torch.zeros(())
    for name, call in calls:
        weight = {
            "seq-mean-token-mean": 1 / (len(tokens) * tokens[name]),
            "seq-mean-token-sum": 1 / len(tokens),
            "token-mean": 1 / sum(tokens.values()),
        }[mode]
        ids = torch.tensor(np.concatenate([call.prompt_ids, call.response_ids]))[None]
        every = torch.log_softmax(model(input_ids=ids).logits[0, len(call.prompt_ids) - 1 : -1], -1)
        now = every.gather(1, torch.tensor(call.response_ids)[:, None])[:, 0]
        losses = -now * imitated[name, call.index] if imitated else _divergences(every, now, call, direction)
        total = total + losses.sum() * weight
    return total


def _divergences(every: torch.Tensor, now: torch.Tensor, call: Transition, direction: Direction) -> torch.Tensor:
    """The teacher's loss of each token of a call; the events of a place are listed one by one."""
    scores, losses = call.teacher_scores, []
    assert scores is not None
    for place, logprob in enumerate(scores.logprobs):
        entries = [
            (id, value) for id, value in zip(scores.top_ids[place], scores.top_logprobs[place], strict=True)
            if np.isfinite(value)
        ]  # fmt: skip
        if not entries:
            ratio = (now[place].detach() - float(call.logprobs[place])).exp().clamp(max=MAX_RATIO)
            losses.append(ratio * (now[place] - float(logprob)) ** 2 / 2)
            continue
        tops = [int(id) for id, _ in entries]
        others = [id for id in range(every.shape[1]) if id not in tops]
        policy = [every[place, tops], torch.logsumexp(every[place, others], 0)[None]]
        shares = np.exp([np.float64(value) for _, value in entries])
        teacher = torch.tensor([*shares, 1 - shares.sum()]).log().float()
        pi = torch.cat(policy)
        pair = (teacher, pi) if direction == "forward" else (pi, teacher)
        losses.append((pair[0].exp() * (pair[0] - pair[1])).sum())
    return torch.stack(losses)


CUTS: dict[str, dict[str, Any]] = {
    "merged": {"sequence_mode": "trajectory"},
    "a row per call": {"sequence_mode": "transition"},
    "micro-batches": {"actor": {"ppo_max_token_len_per_gpu": 64}},
    "padded": {"engine": {"use_remove_padding": False}},
    "shared prompts": {"engine": {"share_prefixes": True}},
}


def settings_of(
    mix: Sequence[str], mode: str, cut: str = "merged", top: tuple[Direction, int] = ("reverse", 0)
) -> dict[str, Any]:
    """Settings of a trainer; a part that the mix lacks has the weight 0."""
    fields = {name: dict(value) if isinstance(value, dict) else value for name, value in CUTS[cut].items()}
    actor: Any = fields.pop("actor", {})
    weights = {name: value if name in mix else 0.0 for name, value in COEFFICIENTS.items()}
    if "rl" not in mix:
        fields["supervised"] = {"path": "answers.jsonl"}  # settings want another part, and the trainer reads no file
    if "kl" in mix:
        fields["teacher"] = {"url": "http://teacher", "direction": top[0], "top_k": top[1]}
    return {"actor": {"loss_agg_mode": mode, **actor}, "loss_weights": weights, **fields}


def cut_as(trainer: VerlTrainer, settings: LearnerSettings) -> None:
    """Let a trainer work by other settings, as if it had started with them."""
    trainer._settings = settings
    changes = {
        "max_tokens": settings.actor.ppo_max_token_len_per_gpu,
        "is_packed": settings.engine.use_remove_padding is not False,
    }
    trainer._forward, trainer._train = changed(trainer._forward, **changes), changed(trainer._train, **changes)


SAMPLED: tuple[Direction, int] = ("reverse", 0)
TOPS: list[tuple[Direction, int]] = [("reverse", 1), ("forward", 1), ("reverse", 8), ("forward", 8)]
CASES = [(mix, SAMPLED) for mix in MIXES] + [(mix, top) for mix in MIXES if "kl" in mix for top in TOPS]
SHORT = [(MIXES[-1], SAMPLED), (MIXES[-1], TOPS[-1])]


@pytest.mark.parametrize(
    ("mix", "top"),
    [
        pytest.param(
            mix, top, marks=() if (mix, top) in SHORT else pytest.mark.long, id=f"{'+'.join(mix)}-{top[0]}-{top[1]}"
        )
        for mix, top in CASES
    ],
)
def test_the_gradient_of_a_mix_is_the_plain_references(
    start: Start, model_path: Path, mix: tuple[str, ...], top: tuple[Direction, int]
) -> None:
    """For each way rows are cut, in any order; the mode of the mean changes along."""
    trainer = start(**settings_of(mix, MODES[0], top=top))
    plain = sampled_by(trainer, groups_of_two_turns(), shift=0.9)
    demonstrations = conversations(seed=3, count=4)
    for number, cut in enumerate(CUTS):
        mode = MODES[(number + len(mix)) % 3]
        if cut == "shared prompts":
            trainer = start(**settings_of(mix, mode, cut, top))
        else:
            cut_as(trainer, settings_for(model_path, **settings_of(mix, mode, cut, top)))
        batch = mixed_batch(trainer, plain, mix, demonstrations)
        advantages = batch.advantages if "rl" in mix else dict.fromkeys(batch.advantages, 0.0)
        expected_loss, expected = reference(
            model_path, plain, demonstrations, changed(batch, advantages=advantages), mode, top
        )
        order = np.random.default_rng(2).permutation(len(batch.sequences))
        shuffled = changed(batch, sequences=[batch.sequences[place] for place in order])
        metrics, (actual,) = gradient_of(trainer, shuffled)
        assert metrics["actor/loss"] == pytest.approx(expected_loss, rel=1e-4, abs=1e-6)
        close(actual, {name: part for name, part in expected.items() if name in actual})
        assert ("actor/ce_loss" in metrics) == ("ce" in mix) and ("actor/teacher_kl" in metrics) == ("kl" in mix)


def test_demonstrations_alone_need_no_rollout(start: Start, model_path: Path) -> None:
    """Windows of a long call, and turns that extend each other: the mean over their tokens, as plain torch has it."""
    trainer = start(actor={"loss_agg_mode": "token-mean"})
    demonstrated = conversations(seed=4, count=3)
    rows = [
        row
        for item in demonstrated
        for row in build_sequences(item.id, build_transitions(item.calls), SequenceConfig())[0]
    ]
    imitated = {(item.id, call.index): 1.0 for item in demonstrated for call in item.calls}
    batch = Batch(rows, {}, imitated=imitated)
    metrics, (actual,) = gradient_of(trainer, batch)
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    calls = [(item.id, call) for item in demonstrated for call in build_transitions(item.calls)]
    loss = _part(model, calls, imitated, "token-mean")
    loss.backward()
    assert metrics["actor/loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert metrics["actor/ce_loss"] == metrics["actor/loss"] and "actor/pg_loss" not in metrics
    close(actual, {name: part.grad for name, part in model.named_parameters() if part.grad is not None})


def test_the_digest_of_a_batch_tells_teachers_and_demonstrations(start: Start) -> None:
    trainer = start()
    rollouts = sampled_by(trainer, groups_of_two_turns(), shift=0.5)
    digests = {
        mixed_batch(trainer, rollouts, mix, []).compute_sha256() for mix in (("rl",), ("rl", "kl"), ("rl", "ce"))
    }
    assert len(digests) == 3


def test_demonstrations_are_spread_over_mini_batches(start: Start) -> None:
    trainer = start()
    rollouts = sampled_by(trainer, groups_of_two_turns(), shift=0.5)
    batch = mixed_batch(trainer, rollouts, ("rl", "ce"), conversations(seed=3, count=4))
    parts = split_mini_batches(batch, 1)
    assert sorted(place for part in parts for place in part) == list(range(len(batch.sequences)))
    names = [{batch.sequences[place].rollout_id for place in part} for part in parts]
    assert [sum(name.startswith("shown") for name in part) for part in names] == [2, 2]
    alone = changed(batch, dispositions=[], sequences=[row for row in batch.sequences if row.rollout_id[0] == "s"])
    assert len(split_mini_batches(alone, 3)) == 2


def outputs_by_ranks(directory: Path, kind: str) -> list[Any]:
    """Run `mixed_ranks` with one rank and with two; return what each wrote."""
    script = Path(__file__).with_name("mixed_ranks.py")
    outs = []
    for number in (1, 2):
        out = directory / f"{number}.pt"
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={number}"]
        done = subprocess.run(
            [*launch, str(script), str(out), kind],
            cwd=script.parents[2],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=4 * HANG_SECONDS,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        outs.append(torch.load(out))
    return outs


def test_a_coarse_divergence_is_one_and_is_bounded() -> None:
    """Never below 0, 0 between equals, at most that of the whole vocabulary, and finite where nothing is left."""
    generator = torch.Generator().manual_seed(0)
    pi, p = (torch.log_softmax(3 * torch.randn(200, 64, generator=generator), -1) for _ in range(2))
    whole = {"reverse": (pi.exp() * (pi - p)).sum(-1), "forward": (p.exp() * (p - pi)).sum(-1)}
    directions: list[Direction] = ["reverse", "forward"]
    for direction in directions:
        before = torch.zeros(200)
        for top_k in (1, 8, 32):
            teacher, ids = p.topk(top_k)
            divergence = coarse_divergence(pi.gather(1, ids), teacher, direction)
            assert (divergence >= before - 1e-5).all() and (divergence <= whole[direction] + 1e-5).all()
            assert coarse_divergence(teacher, teacher, direction).abs().max() < 1e-6
            before = divergence
        certain = torch.tensor([[0.0, -30.0]], requires_grad=True)
        for other in (certain.detach(), certain.detach() - 5, torch.tensor([[0.0, -torch.inf]])):
            value = coarse_divergence(certain, other, direction).sum()
            (gradient,) = torch.autograd.grad(value, certain)
            assert value.isfinite() and gradient.isfinite().all() and value <= -np.log(MIN_REMAINDER)


@pytest.mark.integration
@pytest.mark.long
@pytest.mark.parametrize("kind", ["mix", "top", "sequences shared"])
def test_two_ranks_make_the_mixed_update_of_one(tmp_path: Path, kind: str) -> None:
    outs = outputs_by_ranks(tmp_path, kind)
    close(outs[1]["gradient"], outs[0]["gradient"])
    for name in ("actor/loss", "actor/ce_loss", "actor/teacher_kl", "actor/pg_loss"):
        assert json.loads(outs[1]["metrics"])[name] == pytest.approx(json.loads(outs[0]["metrics"])[name], rel=1e-4)
