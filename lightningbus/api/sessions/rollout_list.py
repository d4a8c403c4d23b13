"""The rollouts of a run that ended last, by mode, outcome and evaluation."""

from dataclasses import dataclass, replace
from typing import Any, get_args

from clickhouse_connect.driver.client import Client

from lightningbus.api.sessions.queries import load_table
from lightningbus.api.sessions.table import Table
from lightningbus.common.name_suggestions import suggest_near_name
from lightningbus.run.errors import UserError
from lightningbus.schemas.base import Mode, Outcome

ROLLOUTS_SQL = """
SELECT run_id, replaceRegexpOne(task_id, '@[^@]*$', '') AS task, task_id, rollout_id, mode, evaluation,
    outcome, reward, rewards, num_calls, response_tokens,
    min_weight_version, max_weight_version, date_diff('microsecond', started_at, ended_at) / 1e6 AS seconds, ended_at,
    error
FROM rollouts
WHERE ({run_id:String} = '' OR run_id = {run_id:String})
    AND {mode:String} IN ('', mode) AND {outcome:String} IN ('', outcome) AND {evaluation:String} IN ('', evaluation)
ORDER BY ended_at DESC LIMIT {limit:UInt32}
"""
EVALUATIONS_SQL = """
SELECT arraySort(groupUniqArray(evaluation)) FROM rollouts
WHERE ({run_id:String} = '' OR run_id = {run_id:String}) AND evaluation != ''
"""
MAX_LIMIT = 2**32 - 1


@dataclass(frozen=True, slots=True)
class RolloutFilter:
    """Conditions of the rollouts to list; an empty text is any."""

    mode: str
    outcome: str
    evaluation: str
    limit: int

    def __post_init__(self) -> None:
        """Raise `UserError` for a mode or an outcome that does not exist, or a wrong limit."""
        _check_name("mode", self.mode, get_args(Mode))
        _check_name("outcome", self.outcome, get_args(Outcome))
        if isinstance(self.limit, bool) or not isinstance(self.limit, int) or not 0 <= self.limit <= MAX_LIMIT:
            raise UserError(f"limit: {self.limit!r} is no number of rows: give one from 0 to {MAX_LIMIT}")


def list_rollouts(client: Client, run: str, wanted: RolloutFilter) -> Table:
    """Return the rollouts that ended last, the newest first; ``run``: empty for any.

    The title of the table tells where there are more than the limit.
    """
    values: dict[str, Any] = {
        "run_id": run,
        "mode": wanted.mode,
        "outcome": wanted.outcome,
        "evaluation": wanted.evaluation,
        "limit": min(wanted.limit + 1, MAX_LIMIT),  # one more tells whether there are more
    }
    table = load_table(client, ROLLOUTS_SQL, values)
    if len(table) > wanted.limit:
        return replace(table[: wanted.limit], title=f"the newest {wanted.limit}; limit= gives more")
    if not table and wanted.evaluation:
        (known,) = client.query(EVALUATIONS_SQL, parameters={"run_id": run}).result_rows[0]
        if known:
            _check_name("evaluation", wanted.evaluation, tuple(known))
    return table


def _check_name(what: str, name: str, known: tuple[str, ...]) -> None:
    if name and name not in known:
        hint = " ".join(filter(None, (suggest_near_name(name, known), f"known are {', '.join(known)}")))
        raise UserError(f"{what}: there is no {name!r}; {hint}")
