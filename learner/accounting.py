"""What became of the rollouts that are not trained on, kept until a training step tells it."""

from collections.abc import Iterable

from learner.batching.rollout_uses import missing, unused
from learner.rollouts.assembler import Rollout
from learner.rollouts.consumer import Intake
from learner.settings.learner import LearnerSettings
from schemas.training import RolloutDisposition


class Account:
    """Takes what leaves the groups unused; a replay from a later checkpoint passes it over."""

    def __init__(self, intake: Intake, settings: LearnerSettings) -> None:
        self._intake, self._settings = intake, settings
        self._uses: list[RolloutDisposition] = []

    def settle(self) -> list[str]:
        """Note the groups and attempts that came to nothing since; returns the tasks of those groups."""
        groups = self._intake.groups
        dropped = [group.task for group in groups.unusable]
        for group in groups.unusable:
            self._pass_over(group.rollouts, "group of fewer than two")
        self._pass_over(groups.late, "late")
        self._uses += missing(groups.missing)
        groups.unusable, groups.late, groups.missing = [], [], []
        return dropped

    def close(self) -> None:
        """Training is over: note whatever is still there."""
        self.settle()
        self._pass_over(list(self._intake.groups.held()), "training was over")

    def add(self, uses: Iterable[RolloutDisposition], rollouts: Iterable[Rollout]) -> None:
        """Note a batch that gave nothing to train on."""
        self._uses += uses
        self._intake.hand_out(rollouts)

    def take(self) -> list[RolloutDisposition]:
        """All that has been noted; from now on it is the taker's to tell."""
        taken, self._uses = self._uses, []
        return taken

    def _pass_over(self, rollouts: list[Rollout], reason: str) -> None:
        self.add(unused(rollouts, reason, self._settings), rollouts)
