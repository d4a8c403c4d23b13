"""Resources that the slots of a runner share: directory, files that workspaces begin with, and provider."""

import asyncio
import contextlib
import itertools
import logging
import os
from pathlib import Path

from lightningbus.runners.agent.limits import ResourceLimits
from lightningbus.runners.settings import RunnerSettings
from lightningbus.runners.workspaces.containers.docker import DockerEngine, find_socket
from lightningbus.runners.workspaces.containers.engine import ContainerSpec, Engine
from lightningbus.runners.workspaces.containers.kubernetes import KubernetesEngine
from lightningbus.runners.workspaces.containers.provider import ContainerProvider
from lightningbus.runners.workspaces.directory import RunnerDirectory, default_root
from lightningbus.runners.workspaces.files.archives import GIB, SizeLimits
from lightningbus.runners.workspaces.files.bases import BaseCache
from lightningbus.runners.workspaces.files.copies import choose_method
from lightningbus.runners.workspaces.files.sources import check_git, fetch, find_source
from lightningbus.runners.workspaces.local import BubblewrapProvider, ProcessProvider
from lightningbus.runners.workspaces.providers import Provider, Workspace
from lightningbus.runners.workspaces.specification import WorkspaceSpec

log = logging.getLogger(__name__)

PYTHON = "python3"


class WorkspacePool:
    """Resources shared by a runner's slots."""

    def __init__(self, runner: RunnerSettings, gateway: str) -> None:
        """Prepare; ``gateway`` is the socket that what runs in a container reaches."""
        assert runner.workspace is not None
        self.settings, self._runner, self._gateway = runner.workspace, runner, gateway
        self._bounds = SizeLimits(self.settings.max_files, round(self.settings.max_gib * GIB))
        self._opening = asyncio.Lock()
        self._directory: RunnerDirectory | None = None
        self._numbers = itertools.count()
        self._num_members = 0
        self.is_tried = False
        """Whether an agent has been started in a workspace."""
        self.provider: Provider
        self._bases: BaseCache

    async def open(self) -> None:
        """Make the directory and connect, unless that is done; raise `WorkspaceFailedError`."""
        async with self._opening:
            if self._directory is not None:
                return
            directory = await asyncio.to_thread(self._make_directory)
            try:
                self.provider = await asyncio.to_thread(self._make_provider, directory)
                log.debug("%s, in %s", await self.provider.open(), directory.path)
            except BaseException:
                await asyncio.to_thread(directory.close)
                raise
            self._bases = BaseCache(directory.bases, self.settings.num_cached)
            self._directory = directory

    def using(self, spec: WorkspaceSpec) -> contextlib.AbstractAsyncContextManager[Path]:
        """Keep the files that a workspace begins with; raises `WorkspaceRefusedError`, `WorkspaceFailedError`."""
        if spec.image and not spec.kind:
            return self._bases.using(spec.key, lambda target: self.provider.read_image(spec, target))
        path = getattr(spec, spec.kind) if spec.kind else ""
        return self._bases.using(spec.key, lambda target: self._fetch(spec.kind, path, spec.commit, target))

    def using_files(self, path: str) -> contextlib.AbstractAsyncContextManager[Path]:
        """Keep the files of a grader; raises as `using`."""
        return self._bases.using(("grade", path), lambda target: self._fetch("directory", path, "", target))

    async def create(self, base: Path, spec: WorkspaceSpec) -> Workspace:
        """Make a workspace; raise `WorkspaceFailedError`."""
        assert self._directory is not None
        return await self.provider.create(self._directory.copies / str(next(self._numbers)), base, spec)

    def join(self) -> None:
        """Count one more slot."""
        self._num_members += 1

    async def leave(self) -> None:
        """Count one slot less; the last one removes the directory."""
        self._num_members -= 1
        if self._num_members == 0 and self._directory is not None:
            directory, self._directory = self._directory, None
            await self.provider.close()
            await asyncio.to_thread(directory.close)

    async def _fetch(self, kind: str, path: str, commit: str, target: Path) -> None:
        def find_and_fetch() -> None:
            source = find_source(path, self.settings.sources) if kind else None
            fetch(kind, source, commit, target, self._bounds)

        await asyncio.to_thread(find_and_fetch)

    def _make_directory(self) -> RunnerDirectory:
        check_git()
        return RunnerDirectory(self.settings.directory or default_root())

    def _make_provider(self, directory: RunnerDirectory) -> Provider:
        settings = self.settings
        if settings.has_containers:
            return self._make_containers(directory.path)
        methods = () if settings.copy_method == "auto" else ((settings.copy_method,),)
        method = choose_method(directory.path, *methods)
        if settings.provider == "process":
            return ProcessProvider(method, self._runner.sandbox_command)
        binds = [path.absolute() for path in settings.binds]
        return BubblewrapProvider(method, (), [*settings.sources, directory.path.parent], binds)

    def _make_containers(self, directory: Path) -> ContainerProvider:
        settings, runner, name = self.settings, self._runner, directory.name
        engine: Engine
        if settings.provider == "docker":
            max_image_bytes = round(settings.max_image_gib * GIB)
            engine = DockerEngine(find_socket(settings.docker_socket, os.environ), name, max_image_bytes)
        else:
            engine = KubernetesEngine(settings.namespace, name, settings.start_seconds, settings.image_pull_secret)
        spec = ContainerSpec(
            image=settings.image or "",
            limits=ResourceLimits.from_settings(runner),
            cpus=settings.cpus,
            max_seconds=settings.max_hours * 3600,
            python=str(runner.python_executable or PYTHON),
        )
        return ContainerProvider(engine, spec, self._gateway, runner.working_dir, self._bounds, directory / "agent")
