"""Workspaces in containers, whichever engine starts them."""

import asyncio
import contextlib
import logging
import tarfile
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

from lightningbus.runners.agent.executors import WORKER_SCRIPT, AgentError
from lightningbus.runners.agent.launcher import AgentLauncher, Launcher
from lightningbus.runners.agent.process import remove_directory
from lightningbus.runners.workspaces.containers.agent_files import AGENT_PLACE, PLACE, WORKER_PLACE, stage_agent
from lightningbus.runners.workspaces.containers.engine import Container, ContainerSpec, Engine
from lightningbus.runners.workspaces.containers.guest import Guest, GuestLostError
from lightningbus.runners.workspaces.containers.guest_files import CHUNK, DATA, LISTING, unpack_over
from lightningbus.runners.workspaces.containers.process import ContainerLauncher, ContainerProcess
from lightningbus.runners.workspaces.errors import WorkspaceFailedError, WorkspaceRefusedError
from lightningbus.runners.workspaces.files.archives import SizeLimits
from lightningbus.runners.workspaces.files.changes import Change, compare_listing, list_files
from lightningbus.runners.workspaces.providers import INSIDE, VARIABLE, Program
from lightningbus.runners.workspaces.specification import WorkspaceSpec

EMPTY_TAR = bytes(1024)
log = logging.getLogger(__name__)
MAX_LISTING_BYTES = 64 * 1024 * 1024


@dataclass
class ContainerProvider:
    """Each workspace is a container; what runs in it reaches the gateway through its standard streams alone."""

    engine: Engine
    spec: ContainerSpec
    """The container of a task that names no image."""
    gateway: str
    agent_directory: Path
    bounds: SizeLimits
    staged: Path
    """Directory for the agent's files as containers get them."""

    async def open(self) -> str:
        """See `Provider`."""
        await asyncio.to_thread(stage_agent, self.agent_directory, self.staged, self.bounds.max_bytes)
        sentence = await self.engine.open()
        mounted = replace(self.spec, mount=(self.staged, PLACE))
        if self.engine.can_mount and await self._has_agent(mounted):
            self.spec = mounted
        return sentence

    async def _has_agent(self, spec: ContainerSpec) -> bool:
        """Return whether containers see the agent's files by a mount: an engine elsewhere does not have them."""
        try:
            container = await self.engine.start(spec)
            try:
                async with Guest(await container.serve(), self.gateway) as guest:
                    listing = [data async for kind, data in guest.pack(WORKER_PLACE, 0) if kind == LISTING]
            finally:
                await container.remove()
        except (WorkspaceFailedError, WorkspaceRefusedError, GuestLostError) as error:
            log.info("the agent's files are copied into each container, as they cannot be mounted: %s", error)
            return False
        return WORKER_SCRIPT.name.encode() in b"".join(listing).split(b"\0")

    async def close(self) -> None:
        """See `Provider`."""
        await self.engine.close()

    def trial_command(self) -> Sequence[str]:
        """See `Provider`."""
        return self.engine.trial_command(self.spec)

    async def create(self, folder: Path, base: Path, spec: WorkspaceSpec) -> "ContainerWorkspace":
        """See `Provider`."""
        workspace = ContainerWorkspace(self, folder, base, spec)
        try:
            await asyncio.to_thread(workspace.upper.mkdir, parents=True)
            await workspace.begin()
            workspace.since_ns = await workspace.unpack_agent()
        except BaseException:
            await workspace.destroy()
            raise
        return workspace

    async def read_image(self, spec: WorkspaceSpec, target: Path) -> None:
        """Copy the files of an image's directory to ``target``; raise as `create`."""
        workspace = ContainerWorkspace(self, target, target, spec)
        try:
            await workspace.begin()
            await asyncio.to_thread(target.mkdir)
            await workspace.bring_out(target, 0)
        finally:
            await workspace.release()

    async def start(self, spec: WorkspaceSpec) -> tuple[Container, Guest]:
        """Start a container and the process that obeys in it."""
        container = await self.engine.start(replace(self.spec, image=spec.image or self.spec.image))
        try:
            return container, await Guest(await container.serve(), self.gateway).__aenter__()
        except GuestLostError as error:
            await container.remove()
            raise WorkspaceFailedError(f"the image needs Python 3.8 or newer as {self.spec.python}: {error}") from error
        except BaseException:
            await container.remove()
            raise


@dataclass
class ContainerWorkspace:
    """A workspace in a container, and after the agent a second container, which it cannot have changed."""

    provider: ContainerProvider
    folder: Path
    base: Path
    spec: WorkspaceSpec
    since_ns: int = 0
    """Time at which all files were there, by the kernel's clock."""
    running: tuple[Container, Guest] | None = None
    changes: list[Change] | None = None
    removed: list[str] = field(default_factory=list)
    method: str = "container"

    @property
    def upper(self) -> Path:
        """Files that the agent wrote."""
        return self.folder / "upper"

    @property
    def place(self) -> str:
        """The directory of the workspace inside."""
        return self.spec.workdir or (self._guest().directory if self._is_of_image else INSIDE)

    @property
    def _is_of_image(self) -> bool:
        return bool(self.spec.image) and not self.spec.kind

    async def begin(self) -> None:
        """Start the container, with the files that the workspace begins with."""
        self.running = await self.provider.start(self.spec)
        if self._is_of_image and self.place == "/":
            raise WorkspaceRefusedError(
                f"the image {self.spec.image} has no WORKDIR: the workspace has to name `workdir`"
            )
        if not self._is_of_image:
            await self._guest().unpack(self.place, stream_directory(self.base))

    async def unpack_agent(self) -> int:
        """Copy the agent's files in, unless they are mounted; return the kernel's time."""
        if self.provider.spec.mount is not None:
            return await self._guest().unpack("/tmp", stream_bytes(EMPTY_TAR))
        return await self._guest().unpack(PLACE, stream_directory(self.provider.staged))

    def agent_launcher(self, launcher: AgentLauncher) -> Launcher:
        """See `Workspace`."""
        paths = {str(WORKER_SCRIPT): f"{WORKER_PLACE}/{WORKER_SCRIPT.name}"}
        paths[str(launcher.directory.absolute())] = AGENT_PLACE
        return ContainerLauncher(launcher, self._guest, self.place, {VARIABLE: self.place}, paths)

    async def run(self, launcher: AgentLauncher, command: Sequence[str], over: Path | None = None) -> Program:
        """See `Workspace`."""
        process: ContainerProcess = await ContainerLauncher(
            launcher, self._guest, self.place, {VARIABLE: self.place}, {}, False, True
        ).start(*command)

        async def read_result() -> bytes | None:
            return process.result

        return Program(process, lambda: True, read_result)

    def has_started_agent(self) -> bool:
        """See `Workspace`."""
        return True

    async def find_agents_fault(self) -> str:
        """See `Workspace`."""
        return await self.running[0].find_agents_fault() if self.running is not None else ""

    async def copy_out(self) -> list[Change]:
        """See `Workspace`."""
        if self.changes is None:
            listing = await self.bring_out(self.upper, self.since_ns)
            present = set(listing)
            self.removed = [path for path in await asyncio.to_thread(list_files, self.base) if path not in present]
            self.changes = await asyncio.to_thread(compare_listing, self.base, self.upper, self.removed)
        return self.changes

    async def copy_in(self, files: Path | None) -> None:
        """Start a fresh container with the agent's files, and those of the grader over them."""
        await self.copy_out()
        await self.release()
        await self.begin()
        await self._guest().unpack(self.place, stream_directory(self.upper), self.removed)
        if files is not None:
            await self._guest().unpack(self.place, stream_directory(files))

    async def destroy(self) -> None:
        """See `Workspace`."""
        try:
            await self.release()
        finally:
            await asyncio.to_thread(remove_directory, self.folder)

    async def release(self) -> None:
        """Remove the container, if there is one."""
        running, self.running = self.running, None
        if running is not None:
            container, guest = running
            try:
                await container.remove()
            finally:
                await guest.__aexit__()

    async def bring_out(self, target: Path, since_ns: int) -> list[str]:
        """Unpack what changed in the workspace to ``target``; return the paths of all its files."""
        listing = bytearray()
        with tempfile.TemporaryFile(dir=self.folder.parent) as file:
            num_bytes = 0
            async with contextlib.aclosing(self._guest().pack(self.place, since_ns)) as pieces:
                async for kind, data in pieces:
                    num_bytes += len(data)
                    if num_bytes > self.provider.bounds.max_bytes + MAX_LISTING_BYTES:
                        raise AgentError("the agent's files are more than workspace.max_gib of the runner")
                    if kind == LISTING and len(listing) < MAX_LISTING_BYTES:
                        listing += data
                    elif kind == DATA:
                        file.write(data)
            file.seek(0)
            await asyncio.to_thread(unpack_changes, file, target, self.provider.bounds)
        return [path.decode(errors="surrogateescape") for path in bytes(listing).split(b"\0") if path]

    def _guest(self) -> Guest:
        if self.running is None:
            raise WorkspaceFailedError("the workspace has no container")
        return self.running[1]


def unpack_changes(file: BinaryIO, target: Path, bounds: SizeLimits) -> None:
    """Unpack an agent's files, which may be as odd as it likes; raise `AgentError` beyond a bound."""
    num_files = num_bytes = 0

    def admit(member: tarfile.TarInfo) -> None:
        nonlocal num_files, num_bytes
        num_files, num_bytes = num_files + 1, num_bytes + member.size
        try:
            bounds.check(num_files, num_bytes)
        except WorkspaceRefusedError as error:
            raise AgentError(f"the agent's files are too many: {error}") from None

    try:
        unpack_over(file, str(target), admit)
    except (OSError, tarfile.TarError, ValueError, RecursionError) as error:
        raise WorkspaceFailedError(f"the agent's files cannot be unpacked: {error}") from error


async def stream_bytes(data: bytes) -> AsyncIterator[bytes]:
    """Yield pieces of some bytes."""
    for start in range(0, len(data), CHUNK):
        yield data[start : start + CHUNK]


async def stream_directory(directory: Path) -> AsyncIterator[bytes]:
    """Yield a tar of a directory's files, by the program ``tar``; raise `WorkspaceFailedError`."""
    command = ["tar", "--create", "--format=pax", "--hard-dereference", "--owner=0", "--group=0", "--numeric-owner"]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *command, "--directory", str(directory), ".", stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe
    )
    assert process.stdout is not None and process.stderr is not None
    try:
        while data := await process.stdout.read(CHUNK):
            yield data
        errors = await process.stderr.read()
        if await process.wait():
            raise WorkspaceFailedError(
                f"{directory} cannot be packed: {errors.decode(errors='replace').strip()[-300:]}"
            )
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
