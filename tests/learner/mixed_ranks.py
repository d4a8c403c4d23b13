"""Run by torchrun: the gradient of a step with all parts of a loss, or on pairs; the first rank writes it."""

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from lightningbus.learner.batching.preferences import Preferences  # noqa: E402
from lightningbus.learner.training.verl_trainer import VerlTrainer  # noqa: E402
from tests.learner.conftest import settings_for, tiny_model  # noqa: E402
from tests.learner.test_joined_rows import groups_of_two_turns  # noqa: E402
from tests.learner.test_loss_parts import MIXES, MODES, SAMPLED, TOPS, mixed_batch, settings_of  # noqa: E402
from tests.learner.test_preference_weights import answers, batch_of, preferring  # noqa: E402
from tests.learner.test_trainer import conversations, sampled_by, whole  # noqa: E402


def main(model_path: Path, out: Path, kind: str) -> None:
    """One step on eight rollouts and three demonstrations, or on five pairs away from the start."""
    mix = MIXES[-1]
    top = SAMPLED if kind == "mix" else TOPS[-1]
    sharing = int(os.environ["WORLD_SIZE"]) if kind == "sequences shared" else 1
    engine = {"ulysses_sequence_parallel_size": sharing}
    mixed = settings_for(model_path, engine=engine, **settings_of(mix, MODES[0], top=top))
    settings = preferring(model_path) if kind == "pairs" else mixed
    trainer = VerlTrainer(settings)
    if kind == "pairs":
        preferences = Preferences(answers(), settings)
        VerlTrainer.record_reference.__wrapped__(trainer, preferences.sequences)  # type: ignore[attr-defined]
        with torch.no_grad():
            for part in trainer._engine.module.parameters():
                part.mul_(1.3)
    seen: dict[str, Any] = {}

    def look() -> float:
        """In place of the optimiser; every rank takes part in putting a gradient together."""
        seen["gradient"] = {name: whole(part.grad) for name, part in trainer._engine.module.named_parameters()}
        return 0.0

    trainer._engine.optimizer_step = look
    if trainer.group.rank > 0:
        trainer.run_worker()
        return
    if kind == "pairs":
        batch = batch_of(preferences, 0)
    else:
        rollouts = sampled_by(trainer, groups_of_two_turns(), shift=0.5)
        batch = mixed_batch(trainer, rollouts, mix, conversations(seed=3, count=3))
    seen["metrics"] = json.dumps(trainer.step(batch))
    trainer.stop_workers()
    torch.save(seen, out)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        main(tiny_model(Path(directory)), Path(sys.argv[1]), sys.argv[2])
