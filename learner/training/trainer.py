"""One step of training by verl: log-probabilities, correction, mini-batches, and the weights that come of it."""

from collections.abc import Callable, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from learner.batching.advantages import GAE
from learner.batching.batch import Batch
from learner.batching.sequences import Row
from learner.engine import cpu_platform, engine_state
from learner.engine.engines import adapters_of, make_engine, weights_of
from learner.settings.learner import LearnerSettings
from learner.training.correction import Corrected, corrected
from learner.training.critic import Critic, judged
from learner.training.distributed import Ranks, shares
from learner.training.loss import actor_config, policy_loss
from learner.training.tensors import EMPTY, Engine, Floats, from_engine, segments_of, to_engine
from learner.training.token_weights import row_weights

P = ParamSpec("P")
T = TypeVar("T")
Arrays = Sequence[NDArray[Any]]


def _together(method: "Callable[Concatenate[Trainer, P], T]") -> "Callable[Concatenate[Trainer, P], T]":
    """The first rank's call is every rank's: the others are in `Trainer.follow` and do the same."""

    @wraps(method)
    def call(self: "Trainer", *arguments: P.args, **named: P.kwargs) -> T:
        if self.ranks.rank == 0:
            self.ranks.broadcast((method.__name__, arguments, named))
        return method(self, *arguments, **named)

    return call  # type: ignore[return-value]


class Trainer:
    """A model, its optimiser, and one step of training; calls block, so run them in a thread.

    Raises ValueError with a sentence for a name of a loss or an estimator that is not known.
    """

    def __init__(self, settings: LearnerSettings) -> None:
        self._settings = settings
        device = cpu_platform.select()
        import torch

        if settings.cpu_threads is not None:
            torch.set_num_threads(settings.cpu_threads)
        torch.manual_seed(settings.seed)
        actor_config(settings)
        self.ranks = Ranks(device)
        self._forward = Engine(settings.actor.ppo_max_token_len_per_gpu)
        self._train = Engine(settings.actor.ppo_max_token_len_per_gpu, entropy=settings.actor.entropy_coeff > 0)
        self._engine = make_engine(settings, device, settings.actor.optim)
        self._adapted = settings.lora.lora_rank > 0
        self._critic = Critic(settings, device) if settings.algorithm.adv_estimator == GAE else None
        self._reference = None
        if settings.actor.use_kl_loss and not self._adapted:  # with adapters it is the model without them
            self._reference = make_engine(settings, device, settings.actor.optim, frozen=True)

    def follow(self) -> None:
        """Do what the first rank does, until it says that it is done."""
        while True:
            request: tuple[str, Any, Any] = self.ranks.broadcast()
            name, arguments, named = request
            if name == "done":
                return
            getattr(self, name)(*arguments, **named)

    def done(self) -> None:
        """The other ranks may end."""
        if self.ranks.rank == 0:
            self.ranks.broadcast(("done", (), {}))

    @_together
    def step(self, batch: Batch) -> dict[str, float]:
        """One training step on a batch; metrics by name: ``actor/…`` and ``rollout_corr/…`` are verl's own."""
        rows, actor = batch.rows, self._settings.actor
        now = self._infer(self._engine, rows, "log_probs")
        correction = corrected(now, [row.logprobs for row in rows], segments_of(rows), self._settings)
        advantages = [batch.advantage_of_tokens(row) for row in rows]
        per_token: dict[str, Arrays] = {
            "segments": correction.segments,
            "old_log_probs": correction.old_log_probs,
            "importance": correction.importance,
        }
        if self._critic is None:
            per_token["advantages"] = advantages
        else:
            values = self._infer(self._critic.engine, rows, "values")
            judgement = judged(rows, advantages, values, self._settings)
            per_token |= {"values": values, "advantages": judgement.advantages, "returns": judgement.returns}
        if actor.use_kl_loss:
            per_token["ref_log_prob"] = self._reference_log_probs(rows)
        metrics: dict[str, list[float]] = {}
        for _ in range(actor.ppo_epochs):
            for places in self._mini_batches(batch):
                for name, value in self._update([rows[at] for at in places], _picked(per_token, places)).items():
                    metrics.setdefault(name, []).append(value)
        means = {name: float(np.mean(values)) for name, values in metrics.items()}
        return {**_summary(correction), **means, "actor/lr": self._next_rate()}

    @_together
    def log_probs(self, rows: Sequence[Row]) -> list[Floats]:
        """Log-probabilities under the current weights, ``float32[N]`` per row: of each token, given those before it."""
        return self._infer(self._engine, rows, "log_probs")

    @_together
    def weights(self) -> dict[str, Any]:
        """Every tensor under its Hugging Face name, on the CPU; tied weights once. With LoRA, of the base model."""
        return weights_of(self._engine)

    @_together
    def adapters(self) -> tuple[dict[str, Any], float] | None:
        """LoRA's tensors and the factor of their product; None where all weights are trained."""
        return adapters_of(self._engine) if self._adapted else None

    @_together
    def save(self, path: Path) -> None:
        """Weights, optimiser, schedule and random state into a directory that every rank can reach."""
        engine_state.save(self._engine, path)
        if self._critic is not None:
            engine_state.save(self._critic.engine, path / "critic")

    @_together
    def load(self, path: Path) -> None:
        """What `save` wrote, be it with another number of ranks."""
        engine_state.load(self._engine, path)
        if self._critic is not None:
            engine_state.load(self._critic.engine, path / "critic")

    def _update(self, rows: Sequence[Row], per_token: dict[str, Arrays]) -> dict[str, float]:
        """One optimiser step on rows whose weights add up by themselves; metrics over all ranks."""
        weights = row_weights(rows, self._settings.actor.loss_agg_mode)
        weighted = [np.full(len(row.ids), weight, np.float32) for row, weight in zip(rows, weights, strict=True)]
        _, share, fields = self._own_share(rows, {**per_token, "weights": weighted})
        batch = to_engine(share, fields, self._train)
        metrics: dict[str, Any] = {}
        if self._critic is not None:
            metrics |= self._critic.train(batch.copy())
        num_steps = self._engine.lr_scheduler.last_epoch  # steps, those before a restart included
        if self._critic is None or num_steps >= self._settings.critic.warmup:
            with self._engine.train_mode():
                out = self._engine.train_batch(batch.copy(), partial(policy_loss, self._settings))
            metrics |= {"actor/grad_norm": out["metrics"].pop("grad_norm"), **out["metrics"]}
        return self.ranks.mean({name: _number(value) for name, value in metrics.items()})

    def _mini_batches(self, batch: Batch) -> list[list[int]]:
        """Places of the rows of each optimiser step: whole groups, as verl's ``ppo_mini_batch_size`` counts them."""
        tasks = {use.rollout_id: use.task_id for use in batch.uses}
        names = list(dict.fromkeys(tasks.get(row.rollout, row.rollout) for row in batch.rows))
        size = self._settings.actor.ppo_mini_batch_size or len(names)
        at = {name: number // size for number, name in enumerate(names)}
        segments: dict[int, list[int]] = {}
        for place, row in enumerate(batch.rows):
            segments.setdefault(at[tasks.get(row.rollout, row.rollout)], []).append(place)
        return list(segments.values())

    def _infer(self, engine: Any, rows: Sequence[Row], what: str) -> list[Floats]:
        """An output per token of all rows, on every rank."""
        places, share, _ = self._own_share(rows, {})
        with engine.eval_mode():
            out = engine.infer_batch(to_engine(share, {}, self._forward))["model_output"][what]
        outputs = self.ranks.all_gather(dict(zip(places, from_engine(out, share), strict=False)))
        return [outputs[place] for place in range(len(rows))]

    def _own_share(
        self, rows: Sequence[Row], fields: dict[str, Arrays]
    ) -> tuple[list[int], list[Row], dict[str, Arrays]]:
        """The places of this rank's rows; these with their fields, made up to as many as every rank has."""
        shares_of_ranks = shares(rows, self.ranks.size)
        places = shares_of_ranks[self.ranks.rank]
        extra = max(map(len, shares_of_ranks)) - len(places)
        blank = {name: np.zeros(len(EMPTY.ids), parts[0].dtype) for name, parts in fields.items()}
        if "segments" in blank:
            blank["segments"] = EMPTY.calls
        padded: dict[str, Arrays] = {
            name: [*parts, *[blank[name]] * extra] for name, parts in _picked(fields, places).items()
        }
        return places, [*(rows[place] for place in places), *[EMPTY] * extra], padded

    def _reference_log_probs(self, rows: Sequence[Row]) -> list[Floats]:
        if self._reference is not None:
            return self._infer(self._reference, rows, "log_probs")
        with self._engine.disable_adapter():
            return self._infer(self._engine, rows, "log_probs")

    def _next_rate(self) -> float:
        if self._critic is not None:
            self._critic.engine.lr_scheduler_step()
        return float(self._engine.lr_scheduler_step())


def _picked(fields: dict[str, Arrays], places: Sequence[int]) -> dict[str, Arrays]:
    return {name: [parts[place] for place in places] for name, parts in fields.items()}


def _summary(correction: Corrected) -> dict[str, float]:
    return {name if "/" in name else f"off_policy/{name}": value for name, value in correction.metrics.items()}


def _number(value: Any) -> float:
    """verl's metrics are numbers, lists of one per micro-batch, or its own aggregating type."""
    if hasattr(value, "aggregate"):
        value = value.aggregate()
    if isinstance(value, list | tuple):
        return float(np.mean([_number(value_of) for value_of in value])) if value else 0.0
    return float(value)
