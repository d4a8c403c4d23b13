"""The base weights of an engine, to which the adapters of all its models are added."""

import asyncio
from pathlib import Path


class SharedBase:
    """Base weights that an engine has loaded, and the models whose adapters need them."""

    def __init__(self, num_models: int = 1) -> None:
        """Start without a base. ``num_models``: models that may share one."""
        self._num_models = num_models
        self.path: Path | None = None
        """File of the loaded base; None while the engine has other weights, or none."""
        self.lock = asyncio.Lock()
        """Held while the base is chosen and loaded."""
        self._claims: dict[str, Path] = {}

    def claim(self, model: str, base: Path) -> None:
        """Reserve a base for a model's adapters; raises `ValueError` while another model's adapters need another."""
        other = next((name for name, path in self._claims.items() if name != model and path != base), None)
        if other is not None:
            raise ValueError(f"adapters of {model!r} and of {other!r} start from different bases: use a node for each")
        self._claims[model] = base

    def check_replaceable(self, model: str) -> None:
        """Raise `ValueError` if full weights would replace the base of other models' adapters."""
        if self._num_models > 1:
            raise ValueError(f"{model!r} has whole weights, not adapters: use a node without lora.models for it")

    def on_engine_restart(self) -> None:
        """Record that the new engine has loaded nothing."""
        self.path = None
        self._claims.clear()
