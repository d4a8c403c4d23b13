"""The best weight version of a training job, by its held-out reward. Pure."""

from collections.abc import Sequence
from statistics import fmean

from lightningbus.run.evaluation.evaluation import Evaluation


def find_best(evaluations: Sequence[Evaluation], best_by: str = "") -> Evaluation | None:
    """Return the evaluation with the highest mean reward; None where there is none.

    Only evaluations with the label ``best_by`` are compared; empty: with that of the first one, which is the first of
    ``eval.sampling``. Of equal ones it is that of the version with the highest mean in the other evaluations, as far as
    all of them have the same, then the newest. A version without others comes after those that have some.
    """
    comparable = _list_comparable(evaluations, best_by)
    if not comparable:
        return None
    highest = max(each.mean_reward for each in comparable)
    equal = [each for each in comparable if each.mean_reward == highest]
    others: dict[int, dict[str, float]] = {each.version: {} for each in equal}
    for each in evaluations:
        if each.label != equal[0].label and each.version in others:
            others[each.version][each.label] = each.mean_reward
    known = [rewards.keys() for rewards in others.values() if rewards]
    shared = set(known[0]).intersection(*known) if known else set[str]()

    def rank(each: Evaluation) -> tuple[bool, float, int]:
        rewards = others[each.version]
        return bool(rewards), fmean(rewards[label] for label in shared) if rewards and shared else 0.0, each.version

    return max(equal, key=rank)


def has_stopped_improving(evaluations: Sequence[Evaluation], patience: int, best_by: str = "") -> bool:
    """Return whether the last ``patience`` evaluations all have no higher mean reward than one before them.

    Only evaluations with the label ``best_by`` are compared; empty: with that of the first one.
    """
    means = [each.mean_reward for each in _list_comparable(evaluations, best_by)]
    return len(means) > patience and max(means[-patience:]) <= max(means[:-patience])


def list_rewards(evaluations: Sequence[Evaluation], model: str, best_by: str = "") -> dict[int, float]:
    """Return the mean reward of each evaluated version of a model, by version; of several the newest.

    Evaluations are compared as in `find_best`.
    """
    return {version_of(each, model): each.mean_reward for each in _list_comparable(evaluations, best_by)}


def version_of(evaluation: Evaluation, model: str) -> int:
    """Return the weight version of a model in an evaluation."""
    return evaluation.versions.get(model, evaluation.version)


def choose_label(evaluations: Sequence[Evaluation], best_by: str = "") -> str:
    """Return the label of the evaluations that decide, see `find_best`; empty where there are none."""
    return best_by or (evaluations[0].label if evaluations else "")


def _list_comparable(evaluations: Sequence[Evaluation], best_by: str) -> list[Evaluation]:
    return [each for each in evaluations if each.label == choose_label(evaluations, best_by)]
