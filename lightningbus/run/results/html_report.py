"""One HTML file about a run: settings, results, and every report as a picture and a table.

It loads nothing: pictures are data URIs, and its policy lets no script run.
"""

import base64
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

from clickhouse_connect.driver.client import Client

from lightningbus.common.flat_settings import flatten_settings
from lightningbus.run.errors import UserError
from lightningbus.run.results.plot import plot_report
from lightningbus.run.results.results import RESULTS
from lightningbus.run.results.reward_picture import PICTURE
from lightningbus.run.run_directory.directory import RunDirectory
from lightningbus.store.reports import REPORTS, Report, ResultTable
from lightningbus.store.reports.interval import add_intervals, format_mean

MAX_ROWS = 200
"""Most rows of a table; the remaining ones are only counted."""
FIRST_REPORTS = ("reward_by_version", "reward_by_name", "pass_at_k", "improved_tasks", "outcomes")
"""Reports that come first; the others follow by name."""
EMPTY: tuple[Any, ...] = (None, "", {}, [])
"""Values without which a column is left out."""
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
STYLE = """
:root { color-scheme: light dark; --line: #dcdcd7; --quiet: #5d636b; }
@media (prefers-color-scheme: dark) { :root { --line: #33383f; --quiet: #a0a7b0; } img { background: #fff; } }
body { margin: 0 auto; max-width: 1080px; padding: 24px 20px 60px; font: 15px/1.5 system-ui, sans-serif; }
h1 { margin: 0; overflow-wrap: anywhere; } h2 { margin: 36px 0 4px; font-size: 19px; } p { margin: 4px 0 10px; }
.quiet { color: var(--quiet); font-size: 13.5px; } img { max-width: 100%; border-radius: 6px; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--line); padding: 3px 10px 3px 0; text-align: left; vertical-align: top; }
th, td { white-space: nowrap; } td.long { white-space: normal; min-width: 400px; overflow-wrap: anywhere; }
summary { cursor: pointer; }
"""


@dataclass(frozen=True, slots=True)
class Section:
    """A report of the run; ``picture`` is a PNG, or empty."""

    title: str
    about: str
    table: ResultTable
    picture: bytes = b""


def write_report(path: Path, client: Client, database: str, run: str) -> None:
    """Write the file about a run; raises `UserError` when it cannot be written."""
    directory = RunDirectory.named(run)
    sections = list(_read_sections(client, database, run))
    results, settings, picture = _read_results(directory), _read_settings(directory), _read_picture(directory)
    text = render(run, results, settings, picture, sections, datetime.now(UTC))
    try:
        path.write_text(text)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}") from error


def render(
    run: str,
    results: Mapping[str, Any],
    settings: Mapping[str, Mapping[str, Any]],
    picture: bytes,
    sections: Sequence[Section],
    written_at: datetime,
) -> str:
    """Render the report as HTML; ``settings`` by process. Pure."""
    date = written_at.strftime("%Y-%m-%d %H:%M UTC")
    body = [f"<h1>{escape(run)}</h1>", f'<p class="quiet">A run of lightningbus, reported on {date}.</p>']
    if picture:
        body.append(_image(picture, f"Reward over weight versions of {run}"))
    if results:
        body += ["<h2>Results</h2>", *_result_tables(results)]
    for section in sections:
        body += [f"<h2>{escape(section.title)}</h2>", f'<p class="quiet">{escape(section.about)}</p>']
        if section.picture:
            body.append(_image(section.picture, section.title))
        body.append(_details("Table", section.table))
    if settings:
        body.append("<h2>Settings</h2>")
        body += [
            _details(name, (["setting", "value"], list(flatten_settings(item)))) for name, item in settings.items()
        ]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(run)} · lightningbus</title><style>{STYLE}</style></head><body><main>\n"
        + "\n".join(body)
        + "\n</main></body></html>\n"
    )


def _read_sections(client: Client, database: str, run: str) -> Iterator[Section]:
    for report in sorted(REPORTS.values(), key=_rank):
        if any(parameter.default is None for parameter in report.parameters):
            continue
        answer = client.query(report.query(database), parameters=report.values({}, run))
        table = add_intervals((list(answer.column_names), [tuple(row) for row in answer.result_rows]))
        if table[1]:
            yield Section(report.title, report.about, table, _draw(report, table))


def _rank(report: Report) -> int:
    return FIRST_REPORTS.index(report.name) if report.name in FIRST_REPORTS else len(FIRST_REPORTS)


def _draw(report: Report, table: ResultTable) -> bytes:
    if report.plot is None:
        return b""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "plot.png"
        plot_report(path, report.title, report.plot, table)
        return path.read_bytes()


def _read_results(directory: RunDirectory | None) -> dict[str, Any]:
    results = _read_json(directory.path / RESULTS) if directory else None
    return results if isinstance(results, dict) else {}


def _read_settings(directory: RunDirectory | None) -> dict[str, dict[str, Any]]:
    """Read the settings of each process that the run started."""
    files = sorted((directory.path / "work").glob("*.json")) if directory else []
    return {file.stem: settings for file in files if isinstance(settings := _read_json(file), dict)}


def _read_picture(directory: RunDirectory | None) -> bytes:
    try:
        return (directory.path / PICTURE).read_bytes() if directory else b""
    except OSError:
        return b""


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def _result_tables(results: Mapping[str, Any]) -> Iterator[str]:
    """Yield a table for each list of records, such as evaluations, then one for the single values."""
    lists = {name: value for name, value in results.items() if _is_records(value)}
    for name, records in lists.items():
        yield f"<h3>{escape(name.replace('_', ' ').capitalize())}</h3>"
        yield _table(tabulate([dict(_flatten_record(record)) for record in records]))
    values = {name: value for name, value in results.items() if name not in lists}
    yield _details("All values", (["result", "value"], list(flatten_settings(values))))


def tabulate(records: Sequence[Mapping[str, Any]]) -> ResultTable:
    """Arrange records as a table, with a column for each name that has a value in any of them. Pure.

    The columns of the record that has most of them come first.
    """
    columns = [
        column
        for column in dict.fromkeys(column for record in sorted(records, key=len, reverse=True) for column in record)
        if any(record.get(column) not in EMPTY for record in records)
    ]
    return columns, [tuple(record.get(column) for column in columns) for record in records]


def _flatten_record(record: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the cells of a record: pass@k in a column for each k, a mean with its 95 % interval, names as text."""
    for name, value in record.items():
        if name == "pass_at":
            for k, estimate in value.items():
                yield f"pass@{k}", format_mean(estimate["mean"], estimate["standard_error"], estimate.get("interval"))
        elif name in ("standard_error", "interval") or (name == "versions" and len(value) < 2):
            continue  # beside the mean, and as `version`
        elif name == "num_recorded" and not value:
            continue
        elif name == "mean_reward":
            yield name, format_mean(value, record.get("standard_error"), record.get("interval"))
        elif isinstance(value, Mapping):
            yield name, ", ".join(f"{key} {each}" for key, each in value.items())
        else:
            yield name, value


def _is_records(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, Mapping) for item in value)


def _details(title: str, table: ResultTable) -> str:
    return f"<details><summary>{escape(title)}</summary>{_table(table)}</details>"


def _table(table: ResultTable) -> str:
    columns, rows = table
    head = "".join(f'<th scope="col">{escape(column.replace("_", " "))}</th>' for column in columns)
    lines = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows[:MAX_ROWS])
    rest = f'<p class="quiet">{len(rows) - MAX_ROWS} more rows</p>' if len(rows) > MAX_ROWS else ""
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>{rest}'


def _cell(value: Any) -> str:
    if value is None:
        return "<td>–</td>"
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    kind = ' class="long"' if len(text) > 60 else ""
    return f"<td{kind}>{escape(text)}</td>"


def _image(picture: bytes, title: str) -> str:
    return f'<img alt="{escape(title)}" src="data:image/png;base64,{base64.b64encode(picture).decode()}">'
