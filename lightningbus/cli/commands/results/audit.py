"""``lightningbus audit``: show the auditor's findings."""

import getpass
import socket
import time
from typing import Annotated, Any

import typer

from lightningbus.bus.weights.audit_log import AuditLog
from lightningbus.cli.options import (
    BusOption,
    CsvOption,
    DatabaseOption,
    JsonOption,
    RunOption,
    SqlOption,
    require_extra,
    run_async,
    with_sql_client,
)
from lightningbus.cli.output import print_result, run_query
from lightningbus.run.errors import UserError
from lightningbus.run.run_directory.discovery import connect
from lightningbus.schemas.audits.events import AuditVerdict
from lightningbus.schemas.audits.quarantine import standing_verdicts
from lightningbus.store.reports import ResultTable


def audit(
    run: RunOption = "",
    overturn: Annotated[
        str | None, typer.Option(help="withdraw the verdict on an engine's id or a version's number, as admin")
    ] = None,
    reason: Annotated[str, typer.Option(help="reason to record with --overturn")] = "",
    model: Annotated[str, typer.Option(help="name of the model")] = "policy",
    bus: BusOption = None,
    sql: SqlOption = None,
    database: DatabaseOption = "lightningbus",
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """Show the auditor's findings by engine and version: tokens recomputed, tokens that differ, and verdicts.

    With --overturn it withdraws a verdict instead.
    """
    if overturn is not None:
        run_async(_overturn(overturn, reason, model, bus))
        print(f"the verdict on {overturn} does not hold any more")
        return
    with require_extra("store"):
        from lightningbus.run.run_data.run_names import find_stored_run
        from lightningbus.store.reports import REPORTS
    definition = REPORTS["audit"]

    def answer(client: Any) -> ResultTable:
        run_id = find_stored_run(client, run)
        return run_query(client, definition.query(database), **definition.values({}, run_id))

    result = with_sql_client(sql, database, answer, run)
    print_result(result, as_json, as_csv, definition.title, none="nothing audited yet")


async def _overturn(suspect: str, reason: str, model: str, bus: str | None) -> None:
    """Withdraw the standing verdict on an engine's id or a version's number; raises `UserError` if there is none."""
    async with connect(bus, "audit", "admin") as at:
        log = AuditLog(at, model)
        verdicts = standing_verdicts((await log.refresh()).verdicts)
        matches = [verdict for verdict in verdicts if suspect in (verdict.engine_id or str(verdict.version),)]
        if not matches:
            standing = ", ".join(verdict.engine_id or str(verdict.version) for verdict in verdicts) or "none"
            raise UserError(f"--overturn: no verdict on {suspect!r} stands; standing: {standing}")
        await log.append(
            AuditVerdict(
                action="overturned",
                engine_id=matches[-1].engine_id,
                version=matches[-1].version,
                failed_version=matches[-1].failed_version,
                reason=f"{getpass.getuser()}@{socket.gethostname()}: {reason}",
                num_tokens=0,
                evidence=0.0,
                decided_at_ns=time.time_ns(),
            )
        )
