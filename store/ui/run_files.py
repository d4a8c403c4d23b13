"""The logs and checkpoints of a run: listed, and sent to a browser. Only files that are listed are sent."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol
from urllib.parse import quote

from aiohttp import web

from lightningbus.store.ui.responses import json_response, require_param

TEXT_SUFFIXES = (".log", ".json", ".jsonl", ".yaml", ".txt")
"""Files that a browser shows as text; others are saved."""


@dataclass(frozen=True, slots=True)
class RunFile:
    """A file of a run: its path below the run's directory, its size in bytes, and when it was changed, in ms."""

    path: str
    bytes: int
    changed_ms: float


@dataclass(frozen=True, slots=True)
class FileList:
    """Files of a run, the newest first, and how many older ones are left out."""

    directory: Path
    files: Sequence[RunFile]
    num_left_out: int = 0


class RunFiles(Protocol):
    """Finds the files of runs on this machine."""

    def list(self, run_id: str) -> FileList | None:
        """List the logs and checkpoints of a run; None: it has no directory here. Blocks."""

    def find(self, run_id: str, path: str) -> Path | None:
        """Find a log that `list` has by its path; None for any other file. Blocks."""


class FileRoutes:
    """The routes, for the application of `lightningbus.store.ui.server`; ``files`` is None where none are shown."""

    def __init__(self, files: RunFiles | None) -> None:
        self._files = files

    def add_to(self, app: web.Application) -> None:
        """Add all routes."""
        app.router.add_get("/api/run/files", self._list)
        app.router.add_get("/api/run/file", self._send)

    async def _list(self, request: web.Request) -> web.Response:
        run_id = require_param(request, "run_id")
        listed = await asyncio.to_thread(self._files.list, run_id) if self._files is not None else None
        if listed is None:
            return json_response({"directory": "", "files": [], "num_left_out": 0})
        rows = [{"path": each.path, "bytes": each.bytes, "changed_ms": each.changed_ms} for each in listed.files]
        return json_response({"directory": str(listed.directory), "files": rows, "num_left_out": listed.num_left_out})

    async def _send(self, request: web.Request) -> web.StreamResponse:
        run_id, path = require_param(request, "run_id"), require_param(request, "path")
        file = await asyncio.to_thread(self._files.find, run_id, path) if self._files is not None else None
        if file is None:
            raise web.HTTPNotFound(text=f"run {run_id!r} has no log {path!r} here")
        name = PurePosixPath(path)
        if name.suffix in TEXT_SUFFIXES:
            return web.FileResponse(file, headers={"Content-Type": "text/plain; charset=utf-8"})
        disposition = f"attachment; filename*=UTF-8''{quote(name.name, safe='')}"
        return web.FileResponse(
            file, headers={"Content-Type": "application/octet-stream", "Content-Disposition": disposition}
        )
