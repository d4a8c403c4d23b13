"""Run by torchrun: the gradients of policy and critic in one step; the first rank writes them to a file."""

import json
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from lightningbus.learner.training.verl_trainer import VerlTrainer  # noqa: E402
from tests.learner.conftest import settings_for, tiny_model  # noqa: E402
from tests.learner.test_joined_rows import groups_of_two_turns  # noqa: E402
from tests.learner.test_trainer import batch_of, conversations, sampled_by, whole  # noqa: E402


def step(model_path: Path, engine: dict[str, Any]) -> dict[str, Any] | None:
    """What one step on seven rollouts computes, so that two ranks have different numbers of rows; None on followers.

    They have prompts in common where ``engine`` says whether to share these.
    """
    rollouts = groups_of_two_turns()[:7] if "share_prefixes" in engine else conversations(count=7)
    trainer = VerlTrainer(
        settings_for(
            model_path,
            actor={"use_kl_loss": True, "ppo_max_token_len_per_gpu": 64},
            algorithm={"adv_estimator": "gae"},
            engine=engine,
        )
    )
    seen: dict[str, Any] = {}

    def look(name: str, engine: Any) -> float:
        """In place of the optimiser; every rank takes part in putting a gradient together."""
        seen[name] = {what: whole(part.grad) for what, part in engine.module.named_parameters()}
        return 0.0

    assert trainer._critic is not None
    for name, trained in (("gradient", trainer._engine), ("critic", trainer._critic.engine)):
        trained.optimizer_step = partial(look, name, trained)
    if trainer.group.rank > 0:
        trainer.run_worker()
        return None
    seen["metrics"] = trainer.step(batch_of(trainer, sampled_by(trainer, rollouts, shift=0.5)))
    trainer.stop_workers()
    return seen


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        actual = step(tiny_model(Path(directory)), **json.loads(sys.argv[2]))
    if actual is not None:
        torch.save(actual, sys.argv[1])
