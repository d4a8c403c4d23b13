"""Interface of an engine of containers, and the container that it starts."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from lightningbus.runners.agent.limits import GIB, ResourceLimits
from lightningbus.runners.workspaces.containers.guest import GuestStream, hold_command, serve_command

LABEL = "lightningbus.workspace"
"""Label of all that an engine makes here; its value is the runner's name."""
LEFTOVER_SECONDS = 120.0
"""Age at which a container that does not run is one that a dead runner left."""


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """A container as an engine starts it."""

    image: str
    limits: ResourceLimits
    cpus: float | None
    max_seconds: float
    python: str
    mount: tuple[Path, str] | None = None
    """Directory of this machine that the container reads, and its place inside."""

    @property
    def memory_bytes(self) -> int | None:
        """Bound of all its memory."""
        return None if self.limits.memory_limit_gib is None else round(self.limits.memory_limit_gib * GIB)

    @property
    def first_command(self) -> list[str]:
        """The command of its first process, which ends with the runner."""
        return hold_command(self.python, self.max_seconds)

    @property
    def serve_command(self) -> list[str]:
        """The command of the process that a guest talks to."""
        return serve_command(self.python)


class Container(Protocol):
    """A running container."""

    async def serve(self) -> GuestStream:
        """Start the process that a guest talks to; raises `WorkspaceFailedError`."""

    async def find_agents_fault(self) -> str:
        """Return a sentence if what runs inside has ended the container or its serving process; else nothing."""

    async def remove(self) -> None:
        """Remove it, if it is there; raises `WorkspaceFailedError`."""


class Engine(Protocol):
    """Docker, Podman or a cluster of Kubernetes."""

    can_mount: bool
    """Whether containers may see directories of the machine that the engine runs on."""

    def trial_command(self, spec: ContainerSpec) -> Sequence[str]:
        """Return a command for a trial, which ends with 0 inside if all is as it should be."""

    async def open(self) -> str:
        """Connect, and remove what dead runners left; return a sentence about it. Raises `WorkspaceFailedError`."""

    async def start(self, spec: ContainerSpec) -> Container:
        """Start a container that has no network.

        Raises `WorkspaceFailedError`, and `WorkspaceRefusedError` for an image that cannot be.
        """

    async def close(self) -> None:
        """Let go of the connection."""
