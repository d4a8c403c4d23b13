"""Training by verl: log-probabilities, correction, mini-batches, and the resulting weights."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from lightningbus.learner.batching.advantages import GAE
from lightningbus.learner.batching.batch import Batch
from lightningbus.learner.engine import cpu_platform
from lightningbus.learner.engine.adapters import check_targets, lora_state_dict
from lightningbus.learner.engine.engines import make_engine
from lightningbus.learner.engine.gpu_defaults import set_gpu_defaults
from lightningbus.learner.engine.number_formats import choose_formats
from lightningbus.learner.engine.verl_checks import check_engine
from lightningbus.learner.engine.weight_writer import WeightWriter, served_dtype
from lightningbus.learner.model_check.check import as_model_check_error, check_model
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.learner.trainer import Floats, ModelProbe
from lightningbus.learner.training.correction import apply_rollout_correction, leave_uncorrected, needs_log_probs
from lightningbus.learner.training.critic import Critic, compute_gae
from lightningbus.learner.training.distributed import ProcessGroup, balance_by_tokens
from lightningbus.learner.training.effective_sample import (
    EffectiveSample,
    effective_sample_size,
    ess_scale,
    scaled_learning_rate,
)
from lightningbus.learner.training.fresh_tokens import FRESH, FreshTokens, compare_fresh, find_fresh
from lightningbus.learner.training.joined_rows import JoinedRows, join_rows
from lightningbus.learner.training.loss import (
    actor_config,
    divide_entropy,
    find_tokens_with_gradient,
    name_grad_norm,
)
from lightningbus.learner.training.loss_parts import find_rows_with_gradient, step_loss
from lightningbus.learner.training.mini_batches import split_mini_batches
from lightningbus.learner.training.preference_weights import spread_weights, sum_log_probs, weigh_pairs
from lightningbus.learner.training.skipped_updates import MAX_SCALED_STEPS, MAX_STEPS, SkippedSteps, count_skipped
from lightningbus.learner.training.state_saver import StateSaver
from lightningbus.learner.training.teacher_loss import make_teacher_fields
from lightningbus.learner.training.tensors import ForwardConfig, Segments, TokenInputs, from_output
from lightningbus.learner.training.token_weights import KL, PREFERENCE, RL, find_part_factors, weigh_parts
from lightningbus.learner.transitions.sequences import TrainSequence

log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")


def _collective(method: "Callable[Concatenate[VerlTrainer, P], T]") -> "Callable[Concatenate[VerlTrainer, P], T]":
    """Decorate a method so that rank 0's call is repeated on all ranks, which wait in `VerlTrainer.run_worker`."""

    @wraps(method)
    def call(self: "VerlTrainer", *arguments: P.args, **named: P.kwargs) -> T:
        if self.group.rank == 0:
            self.group.broadcast((method.__name__, arguments, named))
        return method(self, *arguments, **named)

    return call  # type: ignore[return-value]


class VerlTrainer:
    """A `lightningbus.learner.trainer.Trainer` on verl's engines.

    Raises ValueError with a sentence for a name of a loss or an estimator that is not known, `OwnFunctionError` for a
    user's own loss that cannot be trained on.
    """

    def __init__(self, settings: LearnerSettings) -> None:
        self._settings = settings
        device = cpu_platform.select_platform()
        import torch

        if device == "cuda":
            set_gpu_defaults()
        if settings.cpu_threads is not None:
            torch.set_num_threads(settings.cpu_threads)
        torch.manual_seed(settings.seed)
        actor_config(settings)
        self.group = ProcessGroup(device, has_nccl_sender=settings.weights.broadcast.backend == "nccl")
        check_engine(settings, device, self.group.size)
        self._model_check = self.group.broadcast(check_model(settings, device) if self.group.rank == 0 else None)
        settings = self._settings = self._model_check.settings
        self._forward = ForwardConfig(
            settings.actor.ppo_max_token_len_per_gpu,
            is_packed=bool(settings.engine.use_remove_padding),
            shares_prefixes=bool(settings.engine.share_prefixes),
        )
        self._train = replace(self._forward, entropy=True)
        formats = self._formats = choose_formats(settings, device)
        has_loss_scale = formats.computation == "float16"
        self._skipped_steps = SkippedSteps(MAX_SCALED_STEPS if has_loss_scale else MAX_STEPS)
        with as_model_check_error(settings.model_path):
            self._engine = make_engine(settings, device, settings.actor.optim)
        self._weight_writer = WeightWriter(
            self._engine, served_dtype(settings.model_path, formats.weights), is_writer=self.group.rank == 0
        )
        self._has_adapters = settings.lora.lora_rank > 0
        if self._has_adapters:
            check_targets(self._engine.module)
        self._is_updating = False
        self._critic = Critic(settings, device) if settings.algorithm.adv_estimator == GAE else None
        engines = {"": self._engine} | ({"critic": self._critic.engine} if self._critic is not None else {})
        self._saver = StateSaver(self.group, engines)
        self._reference_sums: dict[str, float] = {}
        self._reference = None
        if (
            settings.actor.use_kl_loss and not self._has_adapters
        ):  # with adapters, the reference is the model without them
            self._reference = make_engine(settings, device, settings.actor.optim, frozen=True)

    def run_worker(self) -> None:
        """Make every call that rank 0 makes, until it stops the workers."""
        while True:
            request: tuple[str, Any, Any] = self.group.broadcast()
            name, arguments, named = request
            if name == "stop":
                return
            getattr(self, name)(*arguments, **named)

    def stop_workers(self) -> None:
        """End `run_worker` on the other ranks."""
        if self.group.rank == 0:
            self.group.broadcast(("stop", (), {}))

    @_collective
    def step(self, batch: Batch) -> dict[str, float]:
        """Train one step on a batch; return metrics by name.

        ``actor/…`` and ``rollout_corr/…`` are verl's own. Metrics of the pass before the update are absent where it was
        not made (`actor.old_log_prob_interval`).
        """
        self._is_updating = False
        sequences, settings, factors = batch.sequences, self._settings, find_part_factors(batch)
        sampled = [row.restrict(factor != 0) for row, factor in zip(sequences, factors[RL], strict=True)]
        segments = Segments(sampled)
        behavior = [sequence.logprobs for sequence in sequences]
        fresh = [find_fresh(row, batch.version) for row in sampled]
        correction, metrics = leave_uncorrected(behavior, segments), dict[str, float]()
        is_needed, current = needs_log_probs(settings), None
        is_due = is_needed or self._num_steps % settings.actor.old_log_prob_interval == 0
        if is_due and any(row.num_tokens for row in sampled):
            current = self._infer(self._engine, sequences, "log_probs")
            metrics |= compare_fresh(settings, current, behavior, fresh)
            correction = apply_rollout_correction(current, behavior, segments, settings)
            metrics |= correction.metrics
        fields: dict[str, Sequence[NDArray[Any]]] = {
            "segments": correction.segment_ids,
            "old_log_probs": correction.old_log_probs,
            "importance": correction.importance,
            "advantages": [batch.token_advantages(sequence) for sequence in sequences],
            **factors,
        }
        fresh_tokens = FreshTokens(settings) if current is None else None
        if fresh_tokens is not None:
            fields[FRESH] = fresh
        compared = self._compare(batch, fields)
        if KL in factors:
            fields |= make_teacher_fields(sequences, fields)
        if self._critic is not None:
            values = self._infer(self._critic.engine, sequences, "values")
            targets = compute_gae(segments, fields["advantages"], values, settings)
            fields |= {"values": values, "advantages": targets.advantages, "returns": targets.returns}
        if settings.actor.use_kl_loss:
            fields["ref_log_prob"] = self._reference_log_probs(sequences)
        ess = None
        if current is not None and (is_needed or not settings.has_single_update):
            chosen = find_tokens_with_gradient(settings, sampled, fields["advantages"])
            ess = effective_sample_size(current, behavior, chosen)
        metrics |= self._update_all(batch, TokenInputs(sequences, fields), ess, fresh_tokens)
        if fresh_tokens is not None:
            metrics |= fresh_tokens.gather(self.group)
        return {**metrics, **compared, "actor/lr": self._step_scheduler()}

    @_collective
    def log_probs(self, sequences: Sequence[TrainSequence]) -> list[Floats]:
        """Return the log-probability of each token under the current weights, one ``float32[N]`` per sequence."""
        return self._infer(self._engine, sequences, "log_probs")

    @_collective
    def record_reference(self, sequences: Sequence[TrainSequence]) -> None:
        """See `lightningbus.learner.trainer.Trainer.record_reference`."""
        self._reference_sums = sum_log_probs(sequences, self._infer(self._engine, sequences, "log_probs"))

    @_collective
    def check_model(self) -> ModelProbe | None:
        """Compare the engine, in training mode, with the reference; see `lightningbus.learner.model_check.check`."""
        check = self._model_check
        if check.log_probs is not None:
            with as_model_check_error(self._settings.model_path):
                log_probs = self._infer(self._engine, check.rows, "log_probs", in_training_mode=True)
            check.verify(log_probs, is_float32=self._formats.is_exact)
        return check.make_probe(is_exact=self._formats.computation == "float32")

    @_collective
    def write_weights(self, path: Path) -> None:
        """Write every tensor under its Hugging Face name into a safetensors file, in the dtype that nodes serve.

        Tied weights are written once. With LoRA, the weights are the base model's.
        """
        self._weight_writer.write(path)

    @_collective
    def adapters(self) -> tuple[dict[str, Any], float] | None:
        """Return LoRA's tensors and the factor of their product; None where all weights are trained."""
        return lora_state_dict(self._engine) if self._has_adapters else None

    @_collective
    def save(self, path: Path) -> None:
        """Write weights, optimiser, schedule and random state into a directory that every rank can reach."""
        self._saver.save(path)

    @_collective
    def begin_save(self, path: Path) -> Callable[[], None]:
        """See `lightningbus.learner.training.state_saver.StateSaver.begin_save`."""
        return self._saver.begin_save(path)

    @_collective
    def load(self, path: Path) -> None:
        """Load a checkpoint that `save` wrote, also with another number of ranks."""
        self._saver.load(path)

    @property
    def can_go_on(self) -> bool:
        """Whether a failed step has changed nothing, neither a weight nor another rank."""
        return not self._is_updating and self.group.size == 1

    @property
    def _num_steps(self) -> int:
        """Training steps so far, those before a restart included."""
        return int(self._engine.lr_scheduler.last_epoch)

    def _compare(self, batch: Batch, fields: dict[str, Sequence[NDArray[Any]]]) -> dict[str, float]:
        """Add to ``fields`` the weights of a batch's pairs under the current weights; return their metrics."""
        if not batch.pairs:
            return {}
        assert self._settings.preferences is not None
        current = sum_log_probs(batch.sequences, self._infer(self._engine, batch.sequences, "log_probs"))
        weights, metrics = weigh_pairs(batch.pairs, current, self._reference_sums, self._settings.preferences.beta)
        fields[PREFERENCE] = spread_weights(batch.sequences, weights)
        return metrics

    def _update_all(
        self, batch: Batch, inputs: TokenInputs, ess: float | None, fresh_tokens: FreshTokens | None
    ) -> dict[str, float]:
        """Make every optimiser step of a training step; return the means of their metrics.

        The first of them, before the weights have moved, adds its tokens to ``fresh_tokens``.

        Raises `LearnerError` as `SkippedSteps.check`.
        """
        actor = self._settings.actor
        mini_batches = split_mini_batches(batch, actor.ppo_mini_batch_size)
        parts = [self._select(batch, inputs, indices) for indices in mini_batches]
        updates: list[dict[str, float]] = []
        for rows in parts * actor.ppo_epochs:
            updates.append(self._update(rows, ess, None if updates else fresh_tokens))
        for warning in self._skipped_steps.check(updates):
            if self.group.rank == 0:
                log.warning("%s", warning)
        names = dict.fromkeys(name for update in updates for name in update)
        means = {name: float(np.mean([update[name] for update in updates if name in update])) for name in names}
        return {**divide_entropy(means), **count_skipped(updates)}

    def _select(self, batch: Batch, inputs: TokenInputs, indices: Sequence[int]) -> TokenInputs:
        """Return a mini-batch's rows, with the weights of tokens in place of their factors."""
        rows = inputs.select(indices)
        weights = weigh_parts(rows.sequences, rows.fields, self._settings.actor.loss_agg_mode, batch.num_tokens)
        rows = TokenInputs(rows.sequences, {**rows.fields, **weights})
        if self._critic is not None:  # whose values are learned from every row
            return rows
        return rows.select(find_rows_with_gradient(self._settings, rows.fields))

    def _update(self, inputs: TokenInputs, ess: float | None, fresh_tokens: FreshTokens | None) -> dict[str, float]:
        """Make one optimiser step on a mini-batch; return metrics over all ranks.

        ``ess``: effective sample size of the training step; None: that of this update counts.
        """
        inputs = self._join(inputs).inputs
        _, batch, _ = self._shard(inputs, self._train)
        metrics: dict[str, Any] = {}
        self._is_updating = True
        if self._critic is not None:
            metrics |= self._critic.train(batch.copy())
        if self._critic is None or self._num_steps >= self._settings.critic.warmup:
            metrics |= self._update_policy(batch.copy(), ess, fresh_tokens)
        counts = self._engine.is_mp_src_rank_with_outputs()
        return self.group.mean({name: _to_float(value) for name, value in metrics.items()} if counts else None)

    def _update_policy(self, batch: Any, ess: float | None, fresh_tokens: FreshTokens | None) -> dict[str, Any]:
        settings, sample = self._settings, EffectiveSample(self.group)
        bound = settings.algorithm.rollout_correction.ess_bound

        def read_scale() -> float:
            return ess_scale(sample.share if ess is None else ess, bound)

        loss = partial(step_loss, settings, effective_sample=sample if ess is None else None, fresh_tokens=fresh_tokens)
        with self._engine.train_mode(), scaled_learning_rate(self._engine, read_scale):
            out = self._engine.train_batch(batch, loss)
        metrics = name_grad_norm(out["metrics"], "actor")
        if settings.has_single_update or ess is not None:
            share = sample.share if ess is None else ess
            metrics |= {"off_policy/ess": share, "off_policy/ess_scale": read_scale()}
        return metrics

    def _infer(
        self, engine: Any, sequences: Sequence[TrainSequence], output: str, *, in_training_mode: bool = False
    ) -> list[Floats]:
        """Compute one of the model's outputs for every token of all sequences, on every rank.

        ``in_training_mode``: compute as an update does, with dropout if the model has it, but without a gradient.
        """
        joined = self._join(TokenInputs(sequences, {}))
        indices, batch, rows = self._shard(joined.inputs, self._forward)
        with engine.eval_mode():
            if in_training_mode:
                engine.module.train()
            values = from_output(engine.infer_batch(batch)["model_output"][output], rows)
        gathered = self.group.all_gather(dict(zip(indices, values, strict=False)))
        return joined.split([gathered[index] for index in range(len(joined.inputs.sequences))])

    def _join(self, inputs: TokenInputs) -> JoinedRows:
        return join_rows(inputs, self._forward.max_tokens if self._forward.shares_prefixes else 0)

    def _shard(self, inputs: TokenInputs, config: ForwardConfig) -> tuple[list[int], Any, Sequence[TrainSequence]]:
        """Return the indices of this rank's sequences, and verl's batch of them, of the same size on all ranks."""
        shards = balance_by_tokens(inputs.sequences, self._engine.get_data_parallel_size())
        indices = shards[self._engine.get_data_parallel_rank()]  # ranks that share sequences have the same ones
        rows = config.rows_per_micro_batch(inputs.sequences)
        count = -(-max(map(len, shards)) // rows) * rows
        shard = inputs.select(indices).pad(count - len(indices))
        return indices, shard.to_tensordict(config, rows), shard.sequences

    def _reference_log_probs(self, sequences: Sequence[TrainSequence]) -> list[Floats]:
        if self._reference is not None:
            return self._infer(self._reference, sequences, "log_probs")
        with self._engine.disable_adapter():
            return self._infer(self._engine, sequences, "log_probs")

    def _step_scheduler(self) -> float:
        """Advance the learning-rate schedule; return the rate of this step."""
        (rate, *_) = self._engine.lr_scheduler.get_last_lr()
        if self._critic is not None:
            self._critic.engine.lr_scheduler_step()
        self._engine.lr_scheduler_step()
        return float(rate)


def _to_float(value: Any) -> float:
    """Convert a metric of verl to a number: it may be a list with one per micro-batch, or verl's own aggregate."""
    if hasattr(value, "aggregate"):
        value = value.aggregate()
    if isinstance(value, list | tuple):
        return float(np.mean([_to_float(item) for item in value])) if value else 0.0
    return float(value)
