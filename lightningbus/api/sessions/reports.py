"""The reports of `lightningbus report`, asked by a session."""

from collections.abc import Mapping
from typing import Any

from clickhouse_connect.driver.client import Client

from lightningbus.common.name_suggestions import suggest_name
from lightningbus.run.errors import UserError
from lightningbus.store.clickhouse.client import DATABASE, query_table
from lightningbus.store.reports import REPORTS, Report, ResultTable
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


def load_report(client: Client, report: Report, values: Mapping[str, str], run_id: str) -> ResultTable:
    """Answer a report about one run; empty: about all runs of the store. Blocks."""
    sql = report.query(client.database or DATABASE)
    return add_intervals(query_table(client, sql, report.values(values, run_id)))
