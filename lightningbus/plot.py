"""The picture of a run: reward over weight versions."""

from collections.abc import Sequence
from pathlib import Path

from lightningbus.evaluation import Evaluation

Point = tuple[int, float, float, int]
"""Version, mean reward, spread, rollouts."""


def plot_rewards(path: Path, title: str, training: Sequence[Point], held_out: Sequence[Evaluation]) -> None:
    """Write a PNG: training reward by version as a line with its standard error, held-out accuracy as marks."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    versions = [point[0] for point in training]
    means = [point[1] for point in training]
    errors = [point[2] / max(point[3], 1) ** 0.5 for point in training]
    low = [mean - error for mean, error in zip(means, errors, strict=True)]
    high = [mean + error for mean, error in zip(means, errors, strict=True)]
    axes.fill_between(versions, low, high, color="tab:blue", alpha=0.2, linewidth=0)
    axes.plot(versions, means, color="tab:blue", label="training rollouts, sampled (± standard error)")
    for label, mark, color in (("greedy", "D", "tab:orange"), ("sampled", "o", "tab:green")):
        found = [one for one in held_out if one.label == label]
        axes.plot(
            [one.version for one in found],
            [one.accuracy for one in found],
            mark,
            color=color,
            markersize=8,
            linestyle="none",
            label=f"held-out problems, {label}",
            zorder=3,
        )
    axes.set(title=title, xlabel="weight version", ylabel="mean reward", ylim=(-0.04, 1.04))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", frameon=False)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
