"""The reports of `lightningbus report` as tables of a session. Each function blocks, but `find_report`."""

from collections.abc import Mapping
from typing import Any

from clickhouse_connect.driver.client import Client

from lightningbus.api.sessions.table import Table
from lightningbus.common.name_suggestions import suggest_name
from lightningbus.run.errors import UserError
from lightningbus.run.run_data.run_names import check_reward, find_stored_run, list_evaluations
from lightningbus.store.clickhouse.client import DATABASE, query_table
from lightningbus.store.reports import REPORTS, Report
from lightningbus.store.reports.compared_runs import Side, choose_side, describe_selection
from lightningbus.store.reports.interval import add_intervals


def find_report(name: str, parameters: Mapping[str, Any]) -> tuple[Report, dict[str, str]]:
    """Return a report and its parameters as text; raises `UserError` for wrong names and values. Pure."""
    if name not in REPORTS:
        raise UserError(f"there is no report {name!r}; {suggest_name(name, REPORTS) or ', '.join(REPORTS)}")
    report, values = REPORTS[name], {key: str(value) for key, value in parameters.items()}
    try:
        report.values(values, "")
    except ValueError as error:
        raise UserError(str(error)) from error
    return report, values


def load_report(client: Client, report: Report, values: Mapping[str, str], run_id: str) -> Table:
    """Answer a report about one run; empty: about all runs of the store."""
    sql = report.query(client.database or DATABASE)
    columns, rows = add_intervals(query_table(client, sql, report.values(values, run_id)))
    return Table(tuple(columns), tuple(rows), report.title)


def load_side(client: Client, report: Report, values: Mapping[str, str], side: Side) -> Table:
    """Answer a comparison for one of its runs, in that run's store; raises `UserError` where it has no rollouts."""
    run = values[side]
    run_id = find_stored_run(client, run)
    if values.get("reward"):
        check_reward(client, run_id, values["reward"])
    table = load_report(client, report, choose_side(values, side, run_id), run_id)
    if not table:
        selection = describe_selection(values, side, list_evaluations(client, run_id))
        raise UserError(f"run {run!r} has no rollouts with {selection}")
    return table
