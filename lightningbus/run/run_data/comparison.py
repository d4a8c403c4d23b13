"""Comparison of two runs, each in its own store: the checks of one side, and the notes about both."""

from collections.abc import Callable, Mapping
from pathlib import Path

from clickhouse_connect.driver.client import Client

from lightningbus.run.errors import UserError
from lightningbus.run.run_data.model_choice import read_known_learners
from lightningbus.run.run_data.run_names import check_reward, find_stored_run, list_evaluations
from lightningbus.run.run_directory.directory import RUNS
from lightningbus.store.reports import ResultTable
from lightningbus.store.reports.compared_runs import (
    SIDES,
    Side,
    choose_side,
    describe_selection,
    join_sides,
    list_notes,
)


def load_side(
    client: Client,
    arguments: Mapping[str, str],
    side: Side,
    load: Callable[[dict[str, str], str], ResultTable],
) -> ResultTable:
    """Answer the report ``compare`` for one of its runs, in the store of that run. Blocks.

    ``load`` answers the report from its arguments and the run's id. Raises `UserError` where the run has no such reward
    or no such rollouts.
    """
    run = arguments[side]
    run_id = find_stored_run(client, run)
    if arguments.get("reward"):
        check_reward(client, run_id, arguments["reward"])
    table = load(choose_side(arguments, side, run_id), run_id)
    if not table[1]:
        selection = describe_selection(arguments, side, list_evaluations(client, run_id))
        raise UserError(f"run {run!r} has no rollouts with {selection}")
    return table


def join_runs(
    a: ResultTable, b: ResultTable, arguments: Mapping[str, str], runs: Path = RUNS
) -> tuple[ResultTable, list[str]]:
    """Join the answers about both runs; return the table, and a sentence for each reason why they compare badly."""
    names = [arguments[side] for side in SIDES]
    table = join_sides(a, b, " : ".join(names))
    return table, list(list_notes(names, [read_known_learners(name, runs) for name in names], arguments, table))
