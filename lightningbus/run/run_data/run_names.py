"""Checks that the store knows a run, a model, a reward or an evaluation, with names near one that it does not know."""

from pathlib import Path

from clickhouse_connect.driver.client import Client

from lightningbus.common.name_suggestions import suggest_name
from lightningbus.run.errors import UserError
from lightningbus.run.run_directory.directory import RUNS
from lightningbus.run.run_directory.lookup import find_named_run, find_run_names

STORED_RUNS = """
SELECT run_id FROM runs
UNION DISTINCT SELECT DISTINCT run_id FROM training_steps
UNION DISTINCT SELECT DISTINCT run_id FROM tasks
"""

MODELS = """
SELECT DISTINCT model FROM weight_versions WHERE {run_id:String} IN ('', run_id)
UNION DISTINCT SELECT DISTINCT model FROM model_calls WHERE {run_id:String} IN ('', run_id)
"""
REWARDS = "SELECT DISTINCT name FROM reward_by_name WHERE run_id = {run_id:String} ORDER BY name"
EVALUATIONS = """
SELECT DISTINCT evaluation FROM rollouts WHERE run_id = {run_id:String} AND mode = 'eval' ORDER BY evaluation
"""


def check_run(client: Client, run: str, place: str = "in the store") -> None:
    """Raise `UserError`, with the nearest name, for a run of which the store has nothing. Blocks.

    ``place`` says where the run is not, in the words of the error.
    """
    stored = list_stored_runs(client)
    if run not in stored:
        raise _no_stored_run(run, place, stored)


def find_stored_run(client: Client, run: str, runs: Path = RUNS) -> str:
    """Return the id by which a run's store has it, from its name or directory; empty for an empty name. Blocks.

    A run's own store that has one run alone, of another id, has that run: such a store was copied without the rest of
    its directory. ``client`` is on the data of `lightningbus.run.run_data.run_data.RunData.of` that name. Raises
    `UserError` for a run of which the store has nothing.
    """
    if not run:
        return ""
    named, stored = find_named_run(run, runs), list_stored_runs(client)
    run_id = run if named is None else named.run_id
    if run_id in stored:
        return run_id
    if named is not None and named.has_stored_data() and len(stored) == 1:
        return stored[0]
    raise _no_stored_run(run_id, "in the store", stored)


def list_stored_runs(client: Client) -> list[str]:
    """List the ids of the runs of which the store has anything. Blocks."""
    return [row[0] for row in client.query(STORED_RUNS).result_rows]


def _no_stored_run(run: str, place: str, stored: list[str]) -> UserError:
    """Build the error for a run that is not ``place``. A directory of that very name is no hint: the store lacks it."""
    directories = find_run_names()
    known = stored if run in directories else [*dict.fromkeys([*stored, *directories])]
    hint = suggest_name(run, known) if known else "the store has no run yet"
    hint = hint or "`lightningbus query` has them: SELECT * FROM runs"
    return UserError(f"there is no run {run!r} {place}; {hint}")


def check_model(client: Client, run: str, model: str) -> None:
    """Raise `UserError`, with the models there are, for a model that the store has nothing of. Blocks.

    ``run``: empty for any. A store that has no model yet knows none to be wrong.
    """
    names = sorted(row[0] for row in client.query(MODELS, parameters={"run_id": run}).result_rows if row[0])
    if names and model not in names:
        raise UserError(f"--model: there is no model {model!r}; there are: {', '.join(names)}")


def check_reward(client: Client, run_id: str, reward: str) -> None:
    """Raise `UserError`, with the nearest name or those there are, for a named reward that no rollout has. Blocks."""
    names = [row[0] for row in client.query(REWARDS, parameters={"run_id": run_id}).result_rows]
    if reward not in names:
        hint = suggest_name(reward, names) if names else "none of its rewards has a name"
        raise UserError(f"run {run_id!r} has no reward {reward!r}: {hint or ', '.join(names)}")


def list_evaluations(client: Client, run_id: str) -> list[str]:
    """List the names of the evaluations of a run. Blocks."""
    return [row[0] for row in client.query(EVALUATIONS, parameters={"run_id": run_id}).result_rows]
