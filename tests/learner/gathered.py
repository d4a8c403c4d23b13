"""Run by torchrun: writes a model's weights; the other rank notes how much memory its tensors took at most."""

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from torch.multiprocessing.reductions import StorageWeakRef  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from lightningbus.learner.training.verl_trainer import VerlTrainer  # noqa: E402
from tests.learner.conftest import settings_for  # noqa: E402


class LiveBytes(TorchDispatchMode):
    """The most bytes that tensors made under it took at one time, besides a module's own."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self._storages = [part.to_local().untyped_storage() for part in module.parameters()]
        self._ignored = {storage._cdata for storage in self._storages}
        self._live: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak = 0

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        out = function(*arguments, **(named or {}))
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if type(tensor) is torch.Tensor:  # not what stands for one that is spread over ranks
                storage = tensor.untyped_storage()
                if storage._cdata not in self._ignored:
                    self._live[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self._live = {key: entry for key, entry in self._live.items() if not entry[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self._live.values()))
        return out


def main(model_path: Path, out: Path) -> None:
    """Rank 0 writes twice, as a run does."""
    trainer = VerlTrainer(settings_for(model_path))
    if trainer.group.rank > 0:
        with LiveBytes(trainer._engine.module) as live:
            trainer.run_worker()
        parts = [part.full_tensor().nbytes for part in trainer._engine.module.parameters()]
        out.write_text(json.dumps({"peak": live.peak, "largest": max(parts), "all": sum(parts)}))
        return
    for version in range(2):
        trainer.write_weights(out.with_name(f"{version}.safetensors"))
    trainer.stop_workers()
    for part in trainer._engine.module.parameters():
        part.full_tensor()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
