"""verl's engine of a language model, with logits of those tokens alone whose log-probability is asked for.

Most tokens of an agent's rows are context. verl computes logits over the whole vocabulary for them too. Where a
micro-batch names further tokens at each place, their log-probabilities come from the same pass.
"""

from contextlib import nullcontext
from inspect import signature
from typing import Any

from lightningbus.learner.engine.rounded_weights import RoundedWeights

BACKEND = "fsdp2_scored"
KEPT = "scored_positions"
TOP_IDS = "top_ids"
"""Field of a micro-batch, ``int64[tokens, k]``: further tokens in the place of each."""
TOP_LOG_PROBS = "top_log_probs"
"""Output, ``float32[tokens, k]``: their log-probabilities, at the position before as those of the tokens."""


def register_policy_engine(device: str) -> str:
    """Make the engine known to verl; returns its backend. verl's platform must have been selected before."""
    from verl.workers.engine import EngineRegistry

    if BACKEND not in EngineRegistry._engines.get("language_model", {}):
        EngineRegistry.register(model_type="language_model", backend=BACKEND, device=device)(_make_class())
    return BACKEND


def _make_class() -> type:
    import torch
    from verl.utils import tensordict_utils as tu
    from verl.utils.ulysses import slice_input_tensor
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    class PolicyEngine(FSDPEngineWithLMHead):
        """Log-probabilities and entropy of tokens that ``loss_mask`` does not name are 0."""

        rounded_weights: RoundedWeights | None = None
        """Rounding of the weights while the engine computes; None: it computes at the optimiser's own."""

        def forward_backward_batch(self, data: Any, loss_function: Any, forward_only: bool = False) -> Any:
            with self.rounded_weights.hold() if self.rounded_weights is not None else nullcontext():
                return super().forward_backward_batch(data, loss_function, forward_only)

        def prepare_model_inputs(self, micro_batch: Any) -> tuple[Any, Any]:
            inputs, outputs = super().prepare_model_inputs(micro_batch)
            if (top_ids := micro_batch.get(TOP_IDS, None)) is not None:
                labels = outputs["input_ids_rmpad_rolled"]
                outputs["input_ids_rmpad_rolled"] = self._add_top(labels, top_ids.values())
            is_packed = tu.get_non_tensor_data(data=micro_batch, key="use_remove_padding", default=True)
            if not is_packed or self.use_ulysses_sp or outputs["pad_size"]:
                return inputs, outputs
            module = self.module.get_base_model() if self._is_lora else self.module
            if "logits_to_keep" not in signature(module.forward).parameters:
                return inputs, outputs
            kept = find_predicting(micro_batch["loss_mask"].values())
            for name in ("input_ids_rmpad_rolled", "temperature_rmpad"):
                outputs[name] = outputs[name][kept]
            return inputs | {"logits_to_keep": kept}, outputs | {KEPT: kept}

        def prepare_model_outputs(
            self, output: Any, output_args: Any, micro_batch: Any, logits_processor_func: Any
        ) -> Any:
            kept = output_args.get(KEPT)
            if kept is None:
                computed = super().prepare_model_outputs(output, output_args, micro_batch, logits_processor_func)
                return _split_top(computed)
            offsets = micro_batch["input_ids"].offsets()
            scored = micro_batch.copy()
            scored["input_ids"] = torch.nested.nested_tensor_from_jagged(kept, torch.searchsorted(kept, offsets))
            computed = super().prepare_model_outputs(output, output_args, scored, logits_processor_func)
            return _split_top({name: _spread(values.values(), kept, offsets) for name, values in computed.items()})

        def _add_top(self, labels: Any, top_ids: Any) -> Any:
            """Return ``int64[tokens, 1 + k]``: the label of each position, and the further ones there."""
            num_ranks = self.ulysses_sequence_parallel_size if self.use_ulysses_sp else 1
            rolled = torch.roll(top_ids, -1, 0)
            padded = torch.nn.functional.pad(rolled, (0, 0, 0, len(labels) * num_ranks - len(rolled)))
            if self.use_ulysses_sp:
                padded = slice_input_tensor(padded, dim=0, padding=False)
            return torch.cat([labels[:, None], padded], 1)

    def _split_top(outputs: dict[str, Any]) -> dict[str, Any]:
        values, offsets = outputs["log_probs"].values(), outputs["log_probs"].offsets()
        if values.dim() == 1:
            return outputs
        parts = {"log_probs": values[:, 0], TOP_LOG_PROBS: values[:, 1:]}
        return outputs | {
            name: torch.nested.nested_tensor_from_jagged(part.contiguous(), offsets) for name, part in parts.items()
        }

    def _spread(values: Any, kept: Any, offsets: Any) -> Any:
        total = int(offsets[-1])
        spread = values.new_zeros(total, *values.shape[1:]).index_copy(0, kept, values)
        return torch.nested.nested_tensor_from_jagged(spread, offsets)

    return PolicyEngine


def find_predicting(loss_mask: Any) -> Any:
    """Return the positions at which the tokens of a mask, ``float32[tokens]``, are predicted; at least one."""
    import torch

    positions = torch.nonzero(loss_mask[1:]).flatten()
    return positions if len(positions) else torch.zeros(1, dtype=torch.int64, device=loss_mask.device)
