"""The questions everybody asks: a file of SQL each, which is a report, and a view where no parameter must be given.

A file has the name of the report and of its view. It begins with its title, what its figures mean, its parameters with
their defaults and how it is drawn. Its SQL names no database, so a report can put other tables in the place of the
exact views: those of one run, or as they were at some time.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from importlib import resources
from typing import Any

from lightningbus.store.reports.compared_rollouts import COMPARED_ROLLOUTS
from lightningbus.store.reports.counted_rewards import COUNTED_REWARD, COUNTED_REWARDS, OWN_REWARD, REWARD_SETTINGS
from lightningbus.store.reports.pass_note import select_pass_note

HEADER = re.compile(r"--\s*(\w+):\s*(.*?)\s*$")
BY_MODEL = re.compile(r"\bAS model,|\brun_id, model,")
PARAMETER = re.compile(r"(\w+)\s+(\w+)\s*(=\s*(.*))?")

PLACEHOLDERS = {
    "{compared_rollouts}": COMPARED_ROLLOUTS.strip(),
    "{pass_note}": select_pass_note("{solved:Float64}", ": say by the parameter solved which of them is a success"),
    "{counted_reward}": COUNTED_REWARD,
    "{own_reward}": OWN_REWARD,
    "{reward_settings}": REWARD_SETTINGS,
}
"""SQL by the placeholder that stands for it in a report, or in the SQL of one before."""
# As the views of the same names, of one run (empty: all) and as of a moment. SELECTs after the first see those before.
SNAPSHOT_CTES = """
    tasks AS (SELECT * FROM {database}.tasks WHERE {of_run} AND enqueued_at <= {until}),
    attempts AS (SELECT * FROM {database}.attempts WHERE {of_run} AND stored_at <= {until}),
    rollouts AS ({rollouts}),
    model_calls AS (SELECT * FROM {database}.model_calls WHERE {of_run} AND ended_at <= {until}),
    completions AS (SELECT * FROM {database}.completions WHERE {of_run}),
    tokens AS (SELECT * FROM {database}.tokens WHERE {of_run}),
    training_steps AS (
        SELECT * FROM {database}.raw_training_steps FINAL WHERE {of_run} AND ended_at <= {until}
        ORDER BY epoch DESC LIMIT 1 BY run_id, model, step),
    training_rollouts AS (
        SELECT * FROM {database}.raw_training_rollouts FINAL WHERE {of_run}
        AND (run_id, model, step, epoch) IN (SELECT run_id, model, step, epoch FROM training_steps)),
    weight_versions AS (SELECT * FROM {database}.weight_versions WHERE {of_run}
    AND created_at <= {until}),
    weight_activations AS (SELECT * FROM {database}.weight_activations WHERE activated_at <= {until}),
    rollout_audits AS (SELECT * FROM {database}.rollout_audits WHERE {of_run} AND audited_at <= {until}),
    grades AS (SELECT * FROM {database}.grades WHERE {of_run} AND graded_at <= {until}),
    quarantined_rollouts AS (SELECT * FROM {database}.quarantined_rollouts WHERE {of_run}),
    counted_rewards AS ({counted_rewards})
""".replace("{counted_rewards}", COUNTED_REWARDS)
RUN_CONDITION = "({run_id:String} = '' OR run_id = {run_id:String})"
"""In this form ClickHouse reads only the run's part of a table."""
FAR_FUTURE = "2200-01-01 00:00:00"
ROLLOUTS = "SELECT * FROM {database}.rollouts WHERE {of_run}"
PAST_ROLLOUTS = """SELECT * FROM attempts WHERE resolution != 'retried'
    ORDER BY resolution, stream_sequence LIMIT 1 BY run_id, rollout_id"""
"""Selected from the attempts that were stored at the time."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a report; ``default`` is as it would be typed, None: it must be given."""

    name: str
    kind: str
    default: str | None


@dataclass(frozen=True, slots=True)
class Plot:
    """Drawing of a report: ``kind`` is line or bar; a line or group of bars for each of ``y`` and of ``series``.

    ``spread`` is drawn around a line, ``error`` around the marks of an evaluation, both within the columns ``bounds``.
    """

    kind: str
    x: str
    y: tuple[str, ...]
    series: tuple[str, ...] = ()
    spread: str = ""
    error: str = ""
    bounds: tuple[str, ...] = ()
    stacked: bool = False


ResultTable = tuple[list[str], list[tuple[Any, ...]]]
"""Column names and rows."""


@dataclass(frozen=True, slots=True)
class Report:
    """A question by name."""

    name: str
    title: str
    about: str
    body: str
    parameters: tuple[Parameter, ...]
    plot: Plot | None
    is_by_model: bool
    """Whether its rows have the column ``model``."""

    @property
    def view(self) -> str:
        """The statement that makes its view, whose parameters have their defaults.

        A report that has a parameter without a default has no view: ClickHouse ignores arguments that a view does not
        know.
        """
        body = self.body
        for parameter in self.parameters:
            if parameter.default is not None:
                value = parameter.default if parameter.kind != "String" else f"'{parameter.default}'"
                body = body.replace(f"{{{parameter.name}:{parameter.kind}}}", value)
        return f"CREATE OR REPLACE VIEW {{database}}.{self.name}{{on_cluster}} AS\n{body}"

    @property
    def required(self) -> tuple[Parameter, ...]:
        """Its parameters without a default."""
        return tuple(parameter for parameter in self.parameters if parameter.default is None)

    def query(self, database: str, limit: int = 0, of_model: bool = False, until: datetime | None = None) -> str:
        """Build the query of one run: parameters ``run_id`` and its own.

        ``limit`` is the number of rows at most; 0: all. With ``of_model`` the parameter ``model`` chooses the rows.
        With ``until`` the answer is as it was at that moment, in UTC.
        """
        last = f"\nLIMIT {limit}" if limit else ""
        if of_model:
            return f"SELECT * FROM ({self.query(database, until=until)}) WHERE model = {{model:String}}{last}"
        moment = until.strftime("%Y-%m-%d %H:%M:%S.%f") if until else FAR_FUTURE
        ctes = SNAPSHOT_CTES.replace("{rollouts}", PAST_ROLLOUTS if until else ROLLOUTS).strip()
        ctes = ctes.replace("{until}", f"toDateTime64('{moment}', 9, 'UTC')")
        ctes = ctes.replace("{database}", database).replace("{of_run}", RUN_CONDITION)
        if match := re.match(r"WITH\s", self.body):
            return f"WITH {ctes},\n{self.body[match.end() :]}{last}"
        return f"WITH {ctes}\n{self.body}{last}"

    def values(self, arguments: Mapping[str, str], run: str) -> dict[str, Any]:
        """Collect all parameters of `query`; raise ValueError with a sentence for a missing, unknown or wrong one."""
        known = {parameter.name: parameter for parameter in self.parameters}
        if unknown := sorted(arguments.keys() - known.keys()):
            raise ValueError(f"report {self.name} takes {', '.join(known) or 'no parameters'}, not {unknown[0]}")
        values: dict[str, Any] = {"run_id": run}
        for parameter in self.parameters:
            text = arguments.get(parameter.name, parameter.default)
            if text is None:
                names = " ".join(each.name.upper() for each in self.required)
                raise ValueError(
                    f"report {self.name} needs {parameter.name}: --param {parameter.name}=..., "
                    f"or `lightningbus report {self.name} {names}`"
                )
            values[parameter.name] = _parse_value(parameter, text)
        return values


def _parse_value(parameter: Parameter, text: str) -> str | int | float:
    kinds = {"String": str, "Float64": float, "Int64": int}
    try:
        value: str | int | float = kinds[parameter.kind](text)
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError
    except ValueError:
        raise ValueError(f"{parameter.name}: {text!r} is not a number") from None
    return value


def _parse_report(name: str, text: str) -> Report:
    header: dict[str, str] = {}
    parameters: list[Parameter] = []
    lines = text.splitlines()
    while match := HEADER.match(lines[0]):
        lines.pop(0)
        if match[1] == "parameter" and (fields := PARAMETER.fullmatch(match[2])):
            parameters.append(Parameter(fields[1], fields[2], fields[4] if fields[3] else None))
        else:
            header[match[1]] = match[2]
    plot = _parse_plot(header["plot"]) if "plot" in header else None
    body = "\n".join(lines).strip()
    is_by_model = BY_MODEL.search(body) is not None
    for placeholder, sql in PLACEHOLDERS.items():
        body = body.replace(placeholder, sql)
    return Report(name, header["title"], header["about"], body, tuple(parameters), plot, is_by_model)


def _parse_plot(text: str) -> Plot:
    kind, *words = text.split()
    header = dict(word.split("=", 1) for word in words if "=" in word)
    return Plot(
        kind=kind,
        x=header["x"],
        y=tuple(header["y"].split(",")),
        series=tuple(filter(None, header.get("series", "").split(","))),
        spread=header.get("spread", ""),
        error=header.get("error", ""),
        bounds=tuple(filter(None, header.get("bounds", "").split(","))),
        stacked="stacked" in words,
    )


def _load_reports() -> Iterator[Report]:
    for file in sorted(resources.files(__name__).iterdir(), key=lambda file: file.name):
        if file.name.endswith(".sql"):
            yield _parse_report(file.name.removesuffix(".sql"), file.read_text("utf-8"))


REPORTS = {report.name: report for report in _load_reports()}
