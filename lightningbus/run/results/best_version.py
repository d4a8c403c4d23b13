"""The best weight version of a training job, by its held-out reward. Pure."""

from collections.abc import Sequence

from lightningbus.run.evaluation.evaluation import Evaluation


def find_best(evaluations: Sequence[Evaluation]) -> Evaluation | None:
    """The evaluation with the highest mean reward, of equal ones the newest; None where there is none.

    Evaluations of one sampling are compared: the one that ended first, which is the first of ``eval.sampling``.
    """
    comparable = [each for each in evaluations if each.label == evaluations[0].label]
    return max(comparable, key=lambda each: (each.mean_reward, each.version), default=None)


def version_of(evaluation: Evaluation, model: str) -> int:
    """The weight version of a model that was evaluated."""
    return evaluation.versions.get(model, evaluation.version)
