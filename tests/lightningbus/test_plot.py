"""Pictures of reports: bars beside each other, labels inside the picture, evaluations as marks."""

import os
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from lightningbus.run.results.plot import draw_curves, draw_report
from lightningbus.store.reports import REPORTS
from tests.polling import HANG_SECONDS

SETS = (("train", ""), ("eval", "greedy"), ("eval", "sampled"))


@pytest.fixture
def draw() -> Any:
    """Draws a report of rows."""

    def draw(name: str, rows: list[dict[str, Any]]) -> Any:
        plot = REPORTS[name].plot
        assert plot is not None
        figure = draw_report(name, plot, rows)
        FigureCanvasAgg(figure).draw()
        return figure

    return draw


def rows_of(column: str, names: list[str], **values: float) -> list[dict[str, Any]]:
    """A row for each name, of training and of two evaluations."""
    return [
        {"run_id": "a", "mode": mode, "evaluation": evaluation, "agent": "default", column: name, **values}
        for mode, evaluation in SETS
        for name in names
    ]


def rewards_of(num_versions: int) -> list[dict[str, Any]]:
    """Rewards of versions, of training and of two evaluations."""
    fields = {"mean_reward": 0.9, "reward_spread": 0.3, "standard_error": 0.2, "worst": 0.0, "best": 1.0}
    return [
        {**row, "model": "policy", "version": version}
        for version in range(num_versions)
        for row in rows_of("name", ["x"], **fields)
    ]


@pytest.mark.parametrize(
    ("report", "rows", "num_bars"),
    [
        ("outcomes", rows_of("outcome", ["ok", "agent_error", "timeout"], rollouts=5.0), 9),
        ("time_in_rollout", rows_of("part", ["1 queue", "2 model"], mean_seconds=1.0, p95_seconds=2.0), 12),
        ("slowest_rollouts", [
            {"rollout_id": f"a-task-with-a-long-name-{number:03}@some-run-{'x' * 40}.0", "model_seconds": 1.0}
            | {"tool_seconds": 2.0, "other_seconds": None if number else 3.0}
            for number in range(30)
        ], 61),
    ],
)  # fmt: skip
def test_no_bar_lies_over_another_and_no_label_is_cut(
    draw: Any, report: str, rows: list[dict[str, Any]], num_bars: int
) -> None:
    figure = draw(report, rows)
    (axes,) = figure.axes
    boxes = [bar.get_window_extent().padded(-0.5) for bar in axes.patches]
    assert len(boxes) == num_bars
    assert not any(a.overlaps(b) for a, b in combinations(boxes, 2))
    texts = [label.get_window_extent() for label in axes.get_yticklabels()]
    assert not any(a.overlaps(b) for a, b in combinations(texts, 2))
    for text in [*texts, axes.title.get_window_extent(), *(part.get_window_extent() for part in figure.legends)]:
        assert figure.bbox.x0 <= text.x0 and text.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= text.y0 and text.y1 <= figure.bbox.y1
    assert all(box.x1 <= axes.bbox.x1 for box in boxes)


def test_evaluations_are_marks_with_errors_within_the_rewards(draw: Any) -> None:
    (axes,) = draw("reward_by_version", rewards_of(3)).axes
    joined = [line for line in axes.lines if line.get_linestyle() != "None" and len(line.get_xdata()) > 1]
    assert len(joined) == 1, "training alone is a line"
    assert len(axes.containers) == 2, "two evaluations"
    drawn = [path.vertices[:, 1] for part in axes.collections for path in part.get_paths()]
    assert max(values.max() for values in drawn) == pytest.approx(1.0)


def test_versions_are_whole_numbers_on_the_axis(draw: Any) -> None:
    (axes,) = draw("reward_by_version", rewards_of(4)).axes
    assert all(tick.is_integer() for tick in axes.get_xticks())


@pytest.mark.integration
def test_pictures_leave_the_backend_and_the_figures_of_a_notebook_alone(tmp_path: Path) -> None:
    """A notebook's own pictures vanish in silence where the backend is another one."""
    script = tmp_path / "draw.py"
    script.write_text(
        "import sys\n"
        "from pathlib import Path\n"
        "from lightningbus.run.results.plot import plot_report, plot_rewards\n"
        "from lightningbus.store.reports import Plot\n"
        "plot_rewards(Path('reward.png'), 'reward', ([0, 1], [0.5, 1.0], [0.1, 0.0]), [])\n"
        "plot_report(Path('report.png'), 'report', Plot('bar', 'x', ('y',)), (['x', 'y'], [('a', 1.0)]))\n"
        "import matplotlib\n"
        "from matplotlib import pyplot\n"
        "print(matplotlib.get_backend(), pyplot.get_fignums())\n"
    )
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, env={**os.environ, "MPLBACKEND": "svg"}, capture_output=True, text=True,
        timeout=HANG_SECONDS, check=True,
    )  # fmt: skip
    assert done.stdout == "svg []\n"
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in ("reward.png", "report.png"))


def test_a_curve_of_one_version_is_a_point() -> None:
    axes = Figure().subplots()
    draw_curves(axes, {"one": ([0], [0.5], [0.1]), "two": ([0, 1], [0.5, 0.6], [0.1, 0.1])}, {})
    assert [line.get_marker() for line in axes.get_lines()] == [".", "None"]
