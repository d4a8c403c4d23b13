"""``lightningbus doctor``: check that this machine can run lightningbus."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from lightningbus.cli.output import print_result
from lightningbus.run.machine.checks import check_machine, is_prevented
from lightningbus.run.machine.facts import read_facts


def doctor(
    runs: Annotated[Path, typer.Option(help="directory for runs")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="print a JSON list of objects")] = False,
) -> None:
    """Check this machine: Python, cores, memory, GPU, disk, ports, limits, packages; and name what to do.

    Exit with code 1 if something prevents a run.
    """
    checks = check_machine(read_facts(runs))
    if as_json:
        rows = [tuple(asdict(check).values()) for check in checks]
        print_result((["name", "level", "finding", "advice"], rows), as_json=True)
    else:
        for check in checks:
            print(f"{check.level:<8}{check.name}: {check.finding}")
            if check.advice:
                print(f"{'':8}  -> {check.advice}")
    if is_prevented(checks):
        raise SystemExit(1)
