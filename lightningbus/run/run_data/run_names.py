"""Checks that the store knows a run or a model, with names near one that it does not know."""

from clickhouse_connect.driver.client import Client

from lightningbus.common.name_suggestions import suggest_name
from lightningbus.run.errors import UserError
from lightningbus.run.run_directory.lookup import find_run_names

RUNS = """
SELECT run_id FROM runs
UNION DISTINCT SELECT DISTINCT run_id FROM training_steps
UNION DISTINCT SELECT DISTINCT run_id FROM tasks
"""

MODELS = """
SELECT DISTINCT model FROM weight_versions WHERE {run_id:String} IN ('', run_id)
UNION DISTINCT SELECT DISTINCT model FROM model_calls WHERE {run_id:String} IN ('', run_id)
"""


def check_run(client: Client, run: str, place: str = "in the store") -> None:
    """Raise `UserError`, with the nearest name, for a run of which the store has nothing. Blocks.

    ``place`` says where the run is not, in the words of the error.
    """
    names = [row[0] for row in client.query(RUNS).result_rows]
    if run in names:
        return
    names = [*dict.fromkeys([*names, *find_run_names()])]
    hint = suggest_name(run, names) if names else "the store has no run yet"
    hint = hint or "`lightningbus query` has them: SELECT * FROM runs"
    raise UserError(f"there is no run {run!r} {place}; {hint}")


def check_model(client: Client, run: str, model: str) -> None:
    """Raise `UserError`, with the models there are, for a model that the store has nothing of. Blocks.

    ``run``: empty for any. A store that has no model yet knows none to be wrong.
    """
    names = sorted(row[0] for row in client.query(MODELS, parameters={"run_id": run}).result_rows if row[0])
    if names and model not in names:
        raise UserError(f"--model: there is no model {model!r}; there are: {', '.join(names)}")
