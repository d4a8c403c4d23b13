"""``lightningbus runs``: list, label, rename, archive and delete the runs of a directory."""

import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from lightningbus.cli.options import exit_on_user_error
from lightningbus.cli.output import print_result
from lightningbus.common.printable import printable_json, to_printable
from lightningbus.run.errors import exit_with
from lightningbus.run.run_directory.deletion import delete_run
from lightningbus.run.run_directory.directory import RUNS, RunDirectory
from lightningbus.run.run_directory.disk_usage import measure_disk_bytes
from lightningbus.run.run_directory.labels import change_labels, edit_note, edit_tags, parse_tag_changes
from lightningbus.run.run_directory.lookup import find_changeable_run
from lightningbus.run.run_directory.occupancy import lock_run
from lightningbus.run.run_directory.references import find_references
from lightningbus.run.run_directory.renaming import rename_run

app = typer.Typer(
    help="List, label, rename, archive and delete the runs of a directory.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
NameArgument = Annotated[str, typer.Argument(help="name of the run, as `list` shows it, or latest")]
RunsOption = Annotated[Path, typer.Option(help="directory of the runs")]
COLUMNS = ["name", "state", "started", "seconds", "steps", "reward", "held-out", "MB", "tags", "note"]
MAX_CELL_CHARS = 40
WITH_DASHES = {"ignore_unknown_options": True}
"""Context settings: ``-bad`` is a tag, not options."""


@app.command("list")
def list_(
    tag: Annotated[str | None, typer.Option(help="list only the runs with this tag")] = None,
    archived: Annotated[bool, typer.Option("--archived", help="list the archived runs too")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="print a JSON object per line [default: only to a pipe]")
    ] = False,
    runs: RunsOption = RUNS,
) -> None:
    """List runs, the one that was started last first. Times are UTC, rewards those of the last step and evaluation."""
    from lightningbus.run.run_data.run_overview import list_runs

    listed = exit_on_user_error(list_runs, runs, tag, archived)
    for run in listed:
        if run.problem:
            print(to_printable(f"warning: {run.problem}"), file=sys.stderr)
    if as_json or not sys.stdout.isatty():
        for run in listed:
            print(printable_json({**asdict(run), "started_at": run.started_at.isoformat(timespec="seconds")}))
        return
    print_result((COLUMNS, [_cells(run) for run in listed]) if listed else ([], []), none=f"no run in {runs} to list")


@app.command(context_settings=WITH_DASHES)
def tag(
    name: NameArgument,
    changes: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TAG]...", help="tags: `good` or `+good` adds one, `-bad` removes one"),
    ] = None,
    remove: Annotated[list[str] | None, typer.Option(help="tag to remove; repeatable")] = None,
    runs: RunsOption = RUNS,
) -> None:
    """Add tags to a run, and remove tags of it."""

    def work() -> str:
        to_add, to_remove = parse_tag_changes(changes or [], remove or [])
        run = find_changeable_run(name, runs)
        labels = change_labels(run.path, lambda labels: edit_tags(labels, to_add, to_remove))
        return f"run {run.path.name} has {'the tags ' + ', '.join(labels.tags) if labels.tags else 'no tags'}"

    print(to_printable(exit_on_user_error(work)))


@app.command()
def note(
    name: NameArgument,
    text: Annotated[str, typer.Argument(help="text of the note; empty: none any more")],
    runs: RunsOption = RUNS,
) -> None:
    """Give a run a note, in place of the one before."""

    def work() -> str:
        run = find_changeable_run(name, runs)
        labels = change_labels(run.path, lambda labels: edit_note(labels, text))
        return f"run {run.path.name} has {'the note: ' + labels.note if labels.note else 'no note'}"

    print(to_printable(exit_on_user_error(work)))


@app.command()
def rename(
    old: NameArgument,
    new: Annotated[str, typer.Argument(help="new name: letters, digits, _ and -, at most 64")],
    runs: RunsOption = RUNS,
) -> None:
    """Rename a run that has ended, and list the files that have its old name. The store's rows keep theirs."""

    def work() -> list[str]:
        before = find_changeable_run(old, runs).path.name
        run = rename_run(old, new, runs)
        lines = [f"run {before} is {new} now, and --run {new} finds its data"]
        if run.run_id != new:
            lines.append(f"SQL finds its rows by run_id = '{run.run_id}'; it goes on only under that name")
        return [*lines, *(f"{path} has the old name" for path in find_references(before, runs, Path()))]

    for line in exit_on_user_error(work):
        print(to_printable(line))


@app.command()
def archive(
    name: NameArgument,
    undo: Annotated[bool, typer.Option("--undo", help="list the run again")] = False,
    runs: RunsOption = RUNS,
) -> None:
    """Leave a run out of the lists of runs; nothing of it is moved or deleted."""

    def work() -> str:
        run = find_changeable_run(name, runs)
        change_labels(run.path, lambda labels: replace(labels, is_archived=not undo))
        return f"run {run.path.name} is {'listed again' if undo else 'archived'}"

    print(exit_on_user_error(work))


@app.command()
def delete(
    name: NameArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask")] = False,
    runs: RunsOption = RUNS,
) -> None:
    """Delete the directory of a run that has ended, for good. What links in it lead to stays."""

    def measure() -> tuple[RunDirectory, float, list[Path]]:
        run = find_changeable_run(name, runs)
        with lock_run(run):
            references = find_references(run.path.name, runs, Path())
            others = [path for path in references if run.path not in path.parents]
            return run, measure_disk_bytes(run.path) / 1e6, others

    run, megabytes, references = exit_on_user_error(measure)
    for path in references:
        print(to_printable(f"{path} names this run"), file=sys.stderr)
    if not yes:
        _ask(f"Delete {run.path}, which frees {megabytes:,.1f} MB?")
    exit_on_user_error(delete_run, run, runs)
    print(to_printable(f"run {run.path.name} is deleted: {megabytes:,.1f} MB are free"))


def _ask(question: str) -> None:
    """Ask a question; end the process unless the answer is yes."""
    if not sys.stdin.isatty():
        exit_with("there is no terminal to ask in: give --yes to delete the run")
    if not typer.confirm(to_printable(question), err=True):
        raise typer.Exit(1)


def _cells(run: Any) -> tuple[Any, ...]:
    return (
        run.name,
        f"{run.state}, archived" if run.is_archived else run.state,
        f"{run.started_at:%Y-%m-%d %H:%M}",
        None if run.seconds is None else f"{run.seconds:.0f}",
        None if run.steps is None else f"{run.steps}/{run.max_steps}",
        run.reward,
        run.heldout,
        f"{run.disk_bytes / 1e6:.1f}",
        " ".join(run.tags),
        _shorten(run.note),
    )


def _shorten(note: str) -> str:
    line = " ".join(note.split())
    return line if len(line) <= MAX_CELL_CHARS else f"{line[: MAX_CELL_CHARS - 1]}…"
