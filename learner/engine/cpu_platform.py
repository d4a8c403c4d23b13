"""A verl platform for machines without an accelerator: gloo for collectives, ``torch.cpu`` for the device.

verl looks for its platform when it is first imported, so `select` must be called before any other verl import.
"""

import os
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


def select_platform() -> str:
    """Make verl use CUDA where there is some, else this platform; returns the device's name."""
    import torch

    if torch.cuda.is_available():
        return "cuda"
    os.environ["VERL_PLATFORM"] = "cpu"
    from verl.plugin.platform import PlatformBase, PlatformRegistry

    if "cpu" not in PlatformRegistry.registered_names():
        PlatformRegistry.register(platform="cpu")(_make_platform(torch.cpu, PlatformBase))
        _register_engine()
    return "cpu"


def _register_engine() -> None:
    from verl.workers.engine import EngineRegistry
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead, FSDPEngineWithValueHead

    EngineRegistry.register(model_type="language_model", backend=["fsdp2"], device="cpu")(FSDPEngineWithLMHead)
    EngineRegistry.register(model_type="value_model", backend=["fsdp2"], device="cpu")(FSDPEngineWithValueHead)


def _make_platform(cpu: ModuleType, base: type) -> type:
    class PlatformCPU(base):  # type: ignore[misc]
        """No memory to manage, nothing to wait for."""

        device_name = "cpu"
        vendor_name = "cpu"
        device_module = _extend_torch_cpu(cpu)

        def is_available(self) -> bool:
            return True

        def current_device(self) -> str:
            return "cpu"

        def device_count(self) -> int:
            return 1

        def set_device(self, device_index: int) -> None: ...

        def synchronize(self, device_index: int | None = None) -> None: ...

        def manual_seed(self, seed: int) -> None: ...

        def manual_seed_all(self, seed: int) -> None: ...

        def set_allocator_settings(self, settings: str) -> None: ...

        def empty_cache(self) -> None: ...

        def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
            return None, None

        def communication_backend_name(self) -> str:
            return "gloo"

        def visible_devices_envvar(self) -> str:
            return "CUDA_VISIBLE_DEVICES"

        @contextmanager
        def nvtx_range(self, msg: str) -> "Iterator[None]":
            yield

        def profiler_start(self) -> None: ...

        def profiler_stop(self) -> None: ...

        def ray_resource_name(self) -> str:
            return "CPU"

        def ray_noset_envvars(self) -> list[str]:
            return []

        def is_ipc_supported(self) -> bool:
            return False

        def cudart(self) -> None:
            return None

    return PlatformCPU


def _extend_torch_cpu(cpu: ModuleType) -> ModuleType:
    """Extend ``torch.cpu`` by what verl asks of a device: a random state, and empty memory figures."""
    import torch

    module = ModuleType("lightningbus_cpu")
    module.__dict__.update(cpu.__dict__)
    for name in ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"):
        setattr(module, name, _zero)
    module.__dict__.update(
        mem_get_info=lambda *_: (0, 0),
        empty_cache=lambda: None,
        get_rng_state=torch.get_rng_state,
        set_rng_state=torch.set_rng_state,
    )
    return module


def _zero(*_: Any) -> int:
    return 0
