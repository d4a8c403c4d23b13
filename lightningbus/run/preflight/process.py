"""``python -m lightningbus.run.preflight.process``: the checks of a dry run, for settings that come on standard input.

A process of its own keeps what they import out of the one that supervises a run for hours.
"""

import asyncio
import json
import os
import sys
from collections.abc import Iterator

from lightningbus.bus.errors import BusError
from lightningbus.common.observability.log_format import FORMAT_VARIABLE, LogFormat
from lightningbus.common.observability.logs import configure_logging
from lightningbus.common.processes.subprocesses import spawn, terminate
from lightningbus.run.errors import UserError
from lightningbus.run.settings.run_file import RunSettings
from lightningbus.tasks.errors import TaskFileError

COMMAND = (sys.executable, "-P", "-m", "lightningbus.run.preflight.process")
STOP_SECONDS = 10.0


async def run_checks_apart(settings: RunSettings) -> list[str]:
    """Run `job_checks.run_checks` for this machine in a child process; raises `UserError` at the first failed check."""
    pipe = asyncio.subprocess.PIPE
    process = await spawn(*COMMAND, stdin=pipe, stdout=pipe)
    try:
        # What is not set is left out: a run places it in its directory.
        out, _ = await process.communicate(settings.model_dump_json(exclude_unset=True).encode())
    finally:
        await terminate(process, STOP_SECONDS)
    try:
        answer = json.loads(out)
    except ValueError:
        raise UserError(f"the checks of the run ended with {process.returncode}, without a result") from None
    if "error" in answer:
        raise UserError(answer["error"])
    return list(answer["found"])


def _check(fields: str) -> Iterator[str]:
    from lightningbus.run.preflight import job_checks
    from lightningbus.run.preflight.memory_check import Target

    settings = RunSettings.model_validate_json(fields)
    yield from job_checks.run_checks(settings, job_checks.parse_job(settings, "settings"), Target())


def main() -> None:
    """Check, and write an object with what was ``found``, or with an ``error``, to standard output."""
    configure_logging(form=LogFormat(os.environ.get(FORMAT_VARIABLE, LogFormat.human)))
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no result
    try:
        answer: dict[str, object] = {"found": list(_check(sys.stdin.read()))}
    except (BusError, UserError, TaskFileError) as error:
        answer = {"error": str(error)}
    json.dump(answer, out)
    out.flush()


if __name__ == "__main__":
    main()
