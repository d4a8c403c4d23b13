"""The model in transformers, in float32: what a version's tokens are compared with."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lightningbus.auditor.distribution import log_probs, sampled_ranks
from lightningbus.auditor.evidence import AuditedTokens
from lightningbus.auditor.samples import AuditSample
from lightningbus.schemas.text import name_some
from lightningbus.schemas.weights.adapters import compute_products


class ReferenceModel:
    """One model in memory, with the weights of one version at a time; all of it blocks."""

    def __init__(
        self,
        model_path: Path,
        device: str = "auto",
        cpu_threads: int = 1,
        seed: int | None = None,
        has_weights: bool = False,
    ) -> None:
        """Load the model's architecture; ``seed`` is of the random shares in `sampled_ranks`.

        ``has_weights``: begin with the weights in ``model_path``; OSError if it has none. Else they come by `load`.
        """
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM

        torch.set_num_threads(cpu_threads)
        self._device = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
        config = AutoConfig.from_pretrained(model_path)
        auto_class: Any = AutoModelForCausalLM
        with torch.device("meta"):
            self._model: Any = auto_class.from_config(config)
        self._class, self._config = type(self._model), config
        self._options = {"dtype": torch.float32, "attn_implementation": _choose_attention(self._class, config)}
        if has_weights:
            self._model = self._class.from_pretrained(model_path, **self._options).to(self._device).eval()
        self._random = np.random.default_rng(seed)

    def load(self, files: Sequence[Path]) -> None:
        """Load all weights, or a base and the adapters to add to it; raises ValueError if they do not fit the model."""
        from safetensors.torch import load_file

        weights = load_file(files[0])
        if len(files) > 1:
            _merge_adapters(weights, files[1])
        self._model = None  # two models may not fit into memory
        try:
            model, report = self._class.from_pretrained(
                None, config=self._config, state_dict=weights, output_loading_info=True, **self._options
            )
        except RuntimeError as error:
            raise ValueError(f"the weights do not fit the model: {error}") from error
        if others := sorted({*report["missing_keys"], *report["unexpected_keys"]}):
            raise ValueError(f"the weights do not fit the model: {name_some(others)}")
        self._model = model.to(self._device).eval()

    def audit(self, sample: AuditSample) -> AuditedTokens:
        """Recompute the audited tokens; raises ValueError for tokens that the model does not have."""
        import torch

        ids = np.concatenate([sample.prompt_ids, sample.response_ids[: sample.end]])
        if ids.max() >= self._config.get_text_config().vocab_size:
            raise ValueError(f"token {ids.max()} is none of the model's")
        num_tokens = sample.end - sample.start
        with torch.inference_mode():
            inputs = torch.from_numpy(ids)[None].to(self._device)
            logits = self._model(input_ids=inputs[:, :-1], logits_to_keep=num_tokens, use_cache=False).logits[0]
            distribution = log_probs(logits, sample.sampling)
            tokens = inputs[0, -num_tokens:]
            recomputed = distribution.gather(-1, tokens[:, None])[:, 0]
            uniforms = torch.from_numpy(self._random.random(num_tokens, np.float32)).to(self._device)
            ranks = sampled_ranks(distribution, tokens, uniforms).cpu().double().numpy()
        recorded = sample.logprobs[sample.start : sample.end].astype(np.float64)
        return AuditedTokens(
            recorded - recomputed.cpu().double().numpy(), ranks[:0] if sample.sampling.is_greedy else ranks
        )


def _choose_attention(model_class: Any, config: Any) -> str:
    """Choose an attention that computes a model right: torch's has neither caps of logits nor sinks."""
    has_caps = getattr(config.get_text_config(), "attn_logit_softcapping", None)
    return "sdpa" if model_class._supports_sdpa and not has_caps else "eager"


def _merge_adapters(weights: dict[str, Any], adapters: Path) -> None:
    """Add the product of each adapter to its weights."""
    from safetensors import safe_open

    with safe_open(adapters, "pt") as file:
        for name, product in compute_products(file, float((file.metadata() or {})["scale"])):
            weights[name] = weights[name].float() + product
