"""Run by torchrun: goes on from a checkpoint that another number of ranks wrote; the first rank writes what it finds.

Arguments: the model, the checkpoint to load, a batch, the checkpoint to write, the file for what was found.
"""

import pickle
import sys
import threading
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from lightningbus.learner.training.verl_trainer import VerlTrainer  # noqa: E402
from tests.learner.conftest import settings_for  # noqa: E402
from tests.learner.test_engine_state import CHANGES, everything  # noqa: E402


def go_on(model: str, before: str, batch: str, after: str, actual: str) -> None:
    """Load, look, step, look, step while the state before it is written, look."""
    trainer = VerlTrainer(settings_for(Path(model), **CHANGES))
    # Every rank must ask for it.
    trainer.everything = lambda: everything(trainer)  # type: ignore[attr-defined]
    if trainer.group.rank > 0:
        trainer.run_worker()
        return
    fields = pickle.loads(Path(batch).read_bytes())

    def look() -> dict[str, Any]:
        trainer.group.broadcast(("everything", (), {}))
        return everything(trainer)

    trainer.load(Path(before))
    seen = [look()]
    trainer.step(fields)
    write = trainer.begin_save(Path(after))
    seen.append(look())
    written = threading.Thread(target=write)
    written.start()
    trainer.step(fields)
    written.join()
    seen.append(look())
    trainer.stop_workers()
    torch.save(seen, actual)


if __name__ == "__main__":
    go_on(*sys.argv[1:])
