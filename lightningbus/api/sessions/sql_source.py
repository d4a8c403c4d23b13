"""A reader of a run's data, which follows the run: its store while that is up, then its files."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from weakref import WeakSet, finalize

from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError, OperationalError

from lightningbus.api.event_loop import run_blocking
from lightningbus.run.errors import UserError
from lightningbus.run.run_data.store_discovery import SQL_VARIABLE, find_running_store
from lightningbus.run.run_data.store_files import ERROR
from lightningbus.run.run_directory.directory import RunDirectory
from lightningbus.store.clickhouse.client import StoreUnreachableError, connect_readonly
from lightningbus.store.clickhouse.query_limits import EXCEPTION_MARK, explain_error

T = TypeVar("T")


class StoreLostError(UserError):
    """The store does not answer any more; its run may have ended."""


class SqlSource:
    """Clients on the data of a run, or of whatever ``url`` names; calls block and may come from several threads."""

    def __init__(self, run: RunDirectory | None, url: str | None, database: str) -> None:
        self._run, self._url, self._database = run, url or os.environ.get(SQL_VARIABLE), database
        self._client: Client | None = None
        self._files: finalize[[subprocess.Popen[str]], SqlSource] | None = None
        """Ends the process that serves the files."""
        self._opening = threading.Lock()
        _open_sources.add(self)

    def ask(self, work: Callable[[Client], T]) -> T:
        """The result of ``work``; a store that has ended meanwhile is looked for once more. Raises `UserError`."""
        was_open = self._client is not None
        try:
            return self._ask(work)
        except StoreLostError:
            if not was_open:
                raise
        self.close()
        return self._ask(work)

    def close(self) -> None:
        """Release client and files; the next question opens them again."""
        with self._opening:
            if self._client is not None:
                self._client.close()
            if self._files is not None:
                self._files()
            self._client = self._files = None

    def is_on_files_of(self, directory: Path) -> bool:
        """Whether it holds the files of this run's directory."""
        return self._files is not None and self._run is not None and self._run.path.resolve() == directory.resolve()

    def _ask(self, work: Callable[[Client], T]) -> T:
        try:
            return work(self._open())
        except ClickHouseError as error:
            lost = isinstance(error, OperationalError) and EXCEPTION_MARK not in str(error)
            raise (StoreLostError if lost else UserError)(explain_error(error)) from error
        except StoreUnreachableError as error:
            raise UserError(str(error)) from error

    def _open(self) -> Client:
        with self._opening:
            if self._client is None:
                self._client = connect_readonly(self._find(), self._database)
            return self._client

    def _find(self) -> str:
        if self._url is not None:
            return self._url
        endpoints = self._run.read_endpoints() if self._run is not None else None
        if endpoints is not None and endpoints.sql:
            return endpoints.sql
        if self._run is not None and self._run.store.is_dir() and any(self._run.store.iterdir()):
            return self._serve_files(self._run.store)
        if (url := run_blocking(find_running_store())) is None:
            raise UserError("no store is running and there is no run here: train first, or give sql='http://...'")
        return url

    def _serve_files(self, directory: Path) -> str:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "lightningbus.run.run_data.store_files", str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for this process
            text=True,
        )
        self._files = finalize(self, _stop, process)
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        if line and not line.startswith(ERROR):
            return line
        self._files()
        self._files = None
        raise UserError(line.removeprefix(ERROR) or f"the files in {directory} cannot be served")


def _stop(process: "subprocess.Popen[str]") -> None:
    """Close its standard input, at which it ends, and wait for that."""
    process.communicate()


_open_sources: WeakSet[SqlSource] = WeakSet()


def release_files(directory: Path) -> None:
    """Let go of the files of a run's directory in all sessions of this process, for a run that is to write there."""
    for source in list(_open_sources):
        if source.is_on_files_of(directory):
            source.close()
