"""Credit by sets of tasks: each by its own method, where it has one."""

from collections.abc import Sequence

from lightningbus.learner.batching.advantages import Estimator
from lightningbus.learner.batching.credit import Episode, needs_windows, resolve_credit_fn
from lightningbus.learner.selection.task_sets import TaskSets, list_credits
from lightningbus.learner.settings.learner import LearnerSettings


class SetCredit:
    """The credit functions of a run. Raises ValueError for a method that is not known."""

    def __init__(self, settings: LearnerSettings, estimate: Estimator) -> None:
        self.sets, self._estimate = TaskSets(settings), estimate
        self._functions = {each.method: resolve_credit_fn(each.method) for each in list_credits(settings)}

    def find_method(self, task: str) -> str:
        """Return the method for a task."""
        return self.sets.find_settings(task).credit.method

    def needs_windows(self, task: str) -> bool:
        """Return whether the method for a task may use `Episode.windows`."""
        return needs_windows(self.find_method(task))

    def assign(self, episodes: Sequence[Episode]) -> list[Sequence[float | None]]:
        """Return the advantage of each call of each episode; sets with the same settings are assigned together.

        Raises ValueError where a function returns another number of lists.
        """
        places: dict[int, list[int]] = {}
        for place, episode in enumerate(episodes):
            places.setdefault(id(self.sets.find_settings(episode.task_id).credit), []).append(place)
        credited: list[Sequence[float | None]] = [()] * len(episodes)
        for members in places.values():
            chosen = [episodes[place] for place in members]
            credit = self.sets.find_settings(chosen[0].task_id).credit
            values = self._functions[credit.method](chosen, self._estimate, credit)
            if len(values) != len(chosen):
                raise ValueError(f"credit: {credit.method!r} gave {len(values)} lists for {len(chosen)} rollouts")
            for place, each in zip(members, values, strict=True):
                credited[place] = each
        return credited
