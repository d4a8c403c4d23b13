"""Files of the agent and of ours for containers, copied once by a runner."""

import shutil
from pathlib import Path

from lightningbus.runners.agent.executors import WORKER_SCRIPT
from lightningbus.runners.workspaces.errors import WorkspaceFailedError
from lightningbus.runners.workspaces.files.archives import GIB

PLACE = "/tmp/lightningbus"
"""Directory of all these files in a container: mounted there, or copied where every user of an image may write."""
AGENT_PLACE, WORKER_PLACE = f"{PLACE}/agent", f"{PLACE}/worker"


def stage_agent(agent_directory: Path, target: Path, max_bytes: int) -> None:
    """Copy the agent's directory and ours below ``target``, readable by every user; links become what they lead to.

    ``target`` lies in a directory of the runner, which is left out. Raises `WorkspaceFailedError`, also where the files
    have more than ``max_bytes``.
    """
    num_bytes = 0

    def skip(directory: str, names: list[str]) -> set[str]:
        paths = {name: Path(directory, name) for name in names}
        odd = {name for name, path in paths.items() if not (path.is_file() or path.is_dir())}
        return odd | {name for name, path in paths.items() if name == "__pycache__" or path.resolve() in left_out}

    def copy(source: str, destination: str) -> None:
        nonlocal num_bytes
        num_bytes += Path(source).stat().st_size
        if num_bytes > max_bytes:
            raise WorkspaceFailedError(
                f"{agent_directory} has more than {max_bytes / GIB:g} GiB (workspace.max_gib): a container gets all of "
                "working_dir, so give the agent a directory that has nothing else"
            )
        shutil.copy2(source, destination)

    left_out = {target.parent.resolve(), target.parent.parent.resolve()} - {agent_directory.resolve()}
    try:
        for source, place in ((agent_directory, AGENT_PLACE), (WORKER_SCRIPT.parent, WORKER_PLACE)):
            shutil.copytree(source, target / Path(place).name, ignore=skip, copy_function=copy)
        for path in (target, *target.rglob("*")):
            mode = path.stat().st_mode
            path.chmod(mode | 0o444 | (0o111 if mode & 0o100 else 0))
    except (OSError, shutil.Error) as error:
        raise WorkspaceFailedError(f"the agent's files in {agent_directory} cannot be copied: {error}") from error
