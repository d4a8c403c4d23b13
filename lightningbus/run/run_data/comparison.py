"""Comparison of two runs, each in its own store: the checks of one side, and the notes about both."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from clickhouse_connect.driver.client import Client

from lightningbus.run.errors import UserError
from lightningbus.run.run_data.model_choice import read_known_learners
from lightningbus.run.run_data.run_names import check_reward, find_stored_run, list_evaluations
from lightningbus.run.run_directory.directory import RUNS
from lightningbus.store.reports import REPORTS, Report, ResultTable
from lightningbus.store.reports.compared_runs import (
    COMPARISON,
    SIDES,
    TASK_COMPARISON,
    Side,
    choose_side,
    describe_selection,
    explain_no_pairs,
    join_sides,
    join_tasks,
    list_notes,
    pair_tasks,
)


class ComparedRun(NamedTuple):
    """Figures of one run of a comparison, and its tasks one by one, as its store has them."""

    figures: ResultTable
    tasks: ResultTable


def load_side(
    client: Client,
    arguments: Mapping[str, str],
    side: Side,
    load: Callable[[Report, dict[str, str], str], ResultTable],
    runs: Path = RUNS,
) -> ComparedRun:
    """Answer both reports of a comparison for one of its runs, in the store of that run. Blocks.

    ``load`` answers a report from its arguments and the run's id. Raises `UserError` where the run has no such reward
    or no such rollouts.
    """
    run = arguments[side]
    run_id = find_stored_run(client, run, runs)
    if arguments.get("reward"):
        check_reward(client, run_id, arguments["reward"])
    chosen = choose_side(arguments, side, run_id)
    figures = load(REPORTS[COMPARISON], chosen, run_id)
    if not figures[1]:
        selection = describe_selection(arguments, side, list_evaluations(client, run_id))
        raise UserError(f"run {run!r} has no rollouts with {selection}")
    return ComparedRun(figures, load(REPORTS[TASK_COMPARISON], chosen, run_id))


def join_runs(
    report: str, a: ComparedRun, b: ComparedRun, arguments: Mapping[str, str], runs: Path = RUNS
) -> tuple[ResultTable, list[str]]:
    """Join the answers about both runs to the table of ``report``, one of `COMPARISONS`.

    Returns the table, and a sentence for each reason why the runs compare badly.
    """
    names = [arguments[side] for side in SIDES]
    title = " : ".join(names)
    figures, tasks = join_sides(a.figures, b.figures, title), join_tasks(a.tasks, b.tasks, title)
    notes = list(list_notes(names, [read_known_learners(name, runs) for name in names], arguments, figures))
    if reason := explain_no_pairs(tasks):
        notes.append(reason)
    return (tasks if report == TASK_COMPARISON else pair_tasks(figures, tasks)), notes
