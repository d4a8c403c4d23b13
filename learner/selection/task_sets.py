"""Sets of tasks in one run: which settings hold for a task, and which set the next group is of. Pure."""

from array import array
from collections.abc import Sequence

from lightningbus.learner.settings.algorithm import AirRule, CreditSettings
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.tasks.task_source import SET_SEPARATOR


class TaskSets:
    """The sets of a run. Without a list of sets there is one, without a name."""

    def __init__(self, settings: LearnerSettings) -> None:
        self._settings, sets = settings, settings.task_sets
        self._by_name = {each.name: settings.model_copy(update=each.overrides) for each in sets}
        self._index = {each.name: index for index, each in enumerate(sets)}
        self.names = tuple(self._index) or ("",)
        self.turns = SetTurns([each.weight for each in sets] or [1.0])

    def find_settings(self, task: str) -> LearnerSettings:
        """Return the settings for a task, by its id in the file or on the bus."""
        return self._by_name.get(task.partition(SET_SEPARATOR)[0], self._settings) if self._by_name else self._settings

    def find_name(self, task: str) -> str:
        """Return the name of a task's set, by the task's id in the file or on the bus."""
        return self.names[self.find_index(task)]

    def name_of_turn(self, number: int) -> str:
        """Return the name of the set of group ``number``."""
        return self.names[self.turns.at(number)[0]]

    def of_turn(self, number: int) -> LearnerSettings:
        """Return the settings for group ``number``."""
        return self._by_name.get(self.name_of_turn(number), self._settings)

    def find_rules(self, task: str) -> tuple[Sequence[AirRule], str]:
        """Return the rules that reward the spans of a task, and the name of its reward."""
        settings = self.find_settings(task)
        return settings.credit.rules_in_force, settings.reward

    def find_index(self, task: str) -> int:
        """Return the place of a task's set among the sets."""
        return self._index.get(task.partition(SET_SEPARATOR)[0], 0)


def find_set_reward(settings: LearnerSettings, task: str) -> str | None:
    """Return the name of the reward that the set of a task trains on instead of the learner's; None: it has no own."""
    sets = {each.name: each.reward for each in settings.task_sets}
    return sets.get(task.partition(SET_SEPARATOR)[0])


def list_credits(settings: LearnerSettings) -> list[CreditSettings]:
    """List the settings of credit that a run uses: the learner's, and those of sets that have their own."""
    return [settings.credit, *(each.credit for each in settings.task_sets if each.credit is not None)]


class SetTurns:
    """The set of each group of a run: as many groups of each as its weight asks for, the same for every learner."""

    def __init__(self, weights: Sequence[float]) -> None:
        self._weights, self._counts = weights, [0] * len(weights)
        self._sets, self._numbers = array("H"), array("Q")

    def at(self, number: int) -> tuple[int, int]:
        """Return the set of group ``number``, and the groups of that set before it.

        Each next group is of the set that is the furthest behind its share (Webster's method of apportionment).
        """
        if len(self._weights) == 1:
            return 0, number
        while len(self._sets) <= number:
            index = max(
                range(len(self._weights)), key=lambda index: self._weights[index] / (2 * self._counts[index] + 1)
            )
            self._sets.append(index)
            self._numbers.append(self._counts[index])
            self._counts[index] += 1
        return self._sets[number], self._numbers[number]
