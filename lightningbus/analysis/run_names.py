"""Whether the store knows a run, and which names are near one that it does not know."""

from clickhouse_connect.driver.client import Client

from common.name_suggestions import suggest_name
from lightningbus.run.role_process import UserError
from lightningbus.run.run_lookup import find_run_names

RUNS = """
SELECT run_id FROM runs
UNION DISTINCT SELECT DISTINCT run_id FROM training_steps
UNION DISTINCT SELECT DISTINCT run_id FROM tasks
"""


def check_run(client: Client, run: str) -> None:
    """Raises `UserError`, with the nearest name, for a run of which the store has nothing. Blocks."""
    names = [row[0] for row in client.query(RUNS).result_rows]
    if run in names:
        return
    names = [*dict.fromkeys([*names, *find_run_names()])]
    hint = suggest_name(run, names) if names else "the store has no run yet"
    raise UserError(f"--run: there is no run {run!r}; {hint or '`lightningbus query` has them: SELECT * FROM runs'}")
