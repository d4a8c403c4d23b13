"""Weight versions that differ from one another by noise, published as a learner publishes them."""

import asyncio
import time
from pathlib import Path
from typing import Any

from lightningbus.bus.client import Bus
from lightningbus.schemas import subjects
from lightningbus.schemas.weights.events import Blob, WeightManifest

DEVIATION = 0.02
"""Of the noise on each weight; weights of the model are about 0.05."""
RANK, SCALE = 4, 2.0


class VersionPublisher:
    """Publishes one version after the other."""

    def __init__(self, bus: Bus, learner: Bus, model: Path, directory: Path, kind: str) -> None:
        """``bus`` stores objects, ``learner`` may publish manifests. ``kind`` is that of `catalogue.Fault`."""
        from safetensors.torch import load_file

        self._bus, self._learner, self._directory, self._kind = bus, learner, directory, kind
        self._base = load_file(model / "model.safetensors")
        self._base_blob: Blob | None = None
        self._next = 0

    async def publish(self) -> int:
        """Publish the next version; returns its number."""
        version, self._next = self._next, self._next + 1
        if self._kind == "full":
            blobs: tuple[Blob, ...] = (await self._put(f"policy-{version:06d}-1", self._moved(version), None),)
        else:
            if self._base_blob is None:
                self._base_blob = await self._put("policy-base-1", self._base, None)
            adapters = await self._put(f"policy-{version:06d}-1", self._adapters(version), {"scale": str(SCALE)})
            blobs = (self._base_blob, adapters)
        manifest = WeightManifest(
            run_id="audit", model="policy", version=version, kind="full" if self._kind == "full" else "lora",
            blobs=blobs, epoch=1, step=version, created_at_ns=time.time_ns(),
        )  # fmt: skip
        subject = subjects.weights("policy")
        newest = await self._learner.get_last(subjects.WEIGHTS, subject, WeightManifest)
        last = newest[1] if newest is not None else 0
        await self._learner.publish(subject, manifest, msg_id=f"w{version}", expect_last=last)
        return version

    async def _put(self, name: str, tensors: dict[str, Any], metadata: dict[str, str] | None) -> Blob:
        from safetensors.torch import save_file

        path = self._directory / "published.safetensors"
        await asyncio.to_thread(save_file, tensors, path, metadata)
        return await self._bus.object_store.put(subjects.WEIGHT_BUCKET, name, path)

    def _moved(self, version: int) -> dict[str, Any]:
        import torch

        generator = torch.Generator().manual_seed(version)
        return {
            name: tensor + DEVIATION * torch.randn(tensor.shape, generator=generator)
            for name, tensor in self._base.items()
        }

    def _adapters(self, version: int) -> dict[str, Any]:
        import torch

        generator = torch.Generator().manual_seed(version)
        adapters = {}
        for name, tensor in self._base.items():
            if name.endswith(("q_proj.weight", "v_proj.weight")):
                stem = f"base_model.model.{name.removesuffix('.weight')}"
                rows, columns = tensor.shape
                adapters[f"{stem}.lora_A.weight"] = torch.randn(RANK, columns, generator=generator) * 0.1
                adapters[f"{stem}.lora_B.weight"] = torch.randn(rows, RANK, generator=generator) * 0.1
        return adapters
