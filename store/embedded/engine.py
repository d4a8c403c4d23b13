"""ClickHouse embedded in this process (chdb): one engine, one directory, a fresh session for every statement."""

import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import chdb

from lightningbus.bus.directory_lock import lock_directory
from lightningbus.bus.errors import BusError
from lightningbus.store.clickhouse.quoting import quote_text
from lightningbus.store.embedded import readonly_guard
from lightningbus.store.embedded.missing_files import find_missing_tables, find_replaced_links

SETTING_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
INSERT_WITH_DATA = re.compile(
    rb"(?is)\s*(INSERT\s+INTO\s.*?)(\s+SETTINGS\s.*?)?\s+FORMAT\s+(?!VALUES\b)(\w+)\s*?(?:\n|\Z)"
)
"""An INSERT whose data follows it in a stated format, as clients send it."""
GUARD_SCOPE = re.compile(r"(?s)[:.]? In scope SELECT formatQuerySingleLine\(.*\)(?=\. \()")
"""The position of a parser error in the guard's own query, which means nothing to the user."""
ERROR_CODE = re.compile(r"Code: (\d+)\.")

DirectoryLock = Callable[[Path], AbstractContextManager[object]]
"""A lock of the directory: `lock_directory` or `lightningbus.bus.directory_lock.lock_for_reading`."""


class EmbeddedEngineError(Exception):
    """ClickHouse's error message and code."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        match = ERROR_CODE.search(message)
        self.code = int(match[1]) if match else 1000


class EngineBusyError(Exception):
    """The directory is owned by another process, or cannot be opened."""


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement of a request: ``data`` follows it; ``format`` applies if the statement has no FORMAT."""

    sql: bytes
    data: bytes = b""
    format: str = "TabSeparated"
    database: str = ""
    parameters: Mapping[str, str] | None = None
    settings: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class QueryResult:
    """Result bytes, and how many rows were written."""

    body: bytes
    written_rows: int = 0
    written_bytes: int = 0


class EmbeddedClickHouse:
    """The engine of one directory; `execute` may be called from several threads at once."""

    def __init__(self, path: Path, lock: DirectoryLock = lock_directory) -> None:
        self._exit_stack = ExitStack()
        try:
            self._exit_stack.enter_context(lock(path))
        except BusError as error:
            raise EngineBusyError(str(error)) from error
        if replaced := find_replaced_links(path):
            self._exit_stack.close()
            raise EngineBusyError(
                f"{path} is a copy with files in place of links ({replaced[0]}): copy it by `cp -a` or `rsync -a`"
            )
        if missing := find_missing_tables(path):
            self._exit_stack.close()
            raise EngineBusyError(f"{path} lacks the files of the tables {', '.join(missing)}: restore a copy of it")
        self._path = str(path.resolve())
        self._sessions = threading.Condition()
        self._num_sessions, self._is_closed = 0, False
        try:
            self._keepalive_connection = chdb.connect(self._path)  # the engine lives while any connection does
        except RuntimeError as error:
            self._exit_stack.close()
            raise EngineBusyError(
                f"{path} is in use by another process, or no ClickHouse data: {_first_line(error)}"
            ) from error
        names = self._keepalive_connection.query("SELECT lower(name) FROM system.table_functions", "TabSeparatedRaw")
        self._table_functions = frozenset(bytes(names.bytes()).decode().split())

    def close(self) -> None:
        """Stop the engine once its statements have ended; inserted rows are on disk. Blocks."""
        with self._sessions:
            self._is_closed = True
            self._sessions.wait_for(lambda: not self._num_sessions)
            self._keepalive_connection.close()
            self._exit_stack.close()

    def execute(self, statement: Statement) -> QueryResult:
        """Run one statement to its end; raises `EmbeddedEngineError`."""
        with self._session(statement) as connection:
            try:
                return _run(connection, statement)
            except Exception as error:  # chdb raises RuntimeError and its own, with ClickHouse's words inside
                raise EmbeddedEngineError(_error_message(error)) from error

    def query_readonly(self, statement: Statement) -> QueryResult:
        """Execute a read-only query within limits; raise `EmbeddedEngineError`."""
        try:
            settings = readonly_guard.restrict_settings(statement.settings or {})
            with self._session(replace(statement, settings=settings)) as connection:
                readonly_guard.check_statement(_canonicalize(connection, _full_text(statement)), self._table_functions)
                return _run(connection, statement)
        except EmbeddedEngineError:
            raise
        except Exception as error:
            raise EmbeddedEngineError(_error_message(error)) from error

    def insert(self, database: str, table: str, columns: Any, settings: dict[str, str]) -> int:
        """Write an Arrow table with ClickHouse's settings; returns how many rows ClickHouse wrote.

        Raises clickhouse-connect's `DatabaseError`.
        """
        import pyarrow as pa

        names = ", ".join(f"`{name}`" for name in columns.schema.names)
        with self._session(Statement(b"", database=database, settings=settings)) as connection, _memory_file() as file:
            with pa.ipc.new_stream(file, columns.schema) as writer:
                writer.write_table(columns)
            try:
                return int(_insert(connection, f"INSERT INTO `{table}` ({names})", file, "ArrowStream").rows_written())
            except Exception as error:
                from clickhouse_connect.driver.exceptions import DatabaseError  # a client: takes long to import

                engine_error = EmbeddedEngineError(_error_message(error))
                raise DatabaseError(str(engine_error), code=engine_error.code) from error

    @contextmanager
    def _session(self, statement: Statement) -> Iterator[Any]:
        with self._sessions:
            if self._is_closed:
                raise RuntimeError("the engine is closed")
            self._num_sessions += 1
        try:
            with self._connection(statement) as connection:
                yield connection
        finally:
            with self._sessions:
                self._num_sessions -= 1
                self._sessions.notify_all()

    @contextmanager
    def _connection(self, statement: Statement) -> Iterator[Any]:
        connection = chdb.connect(self._path)
        try:
            try:
                settings = dict(statement.settings or {})
                readonly = settings.pop("readonly", None)
                for name, value in settings.items():
                    _apply_setting(connection, name, value)
                if statement.database:
                    connection.query(f"USE `{statement.database.replace('`', '')}`")
                if readonly is not None:  # last: nothing may be set after it
                    _apply_setting(connection, "readonly", readonly)
            except EmbeddedEngineError:
                raise
            except Exception as error:
                raise EmbeddedEngineError(_error_message(error)) from error
            yield connection
        finally:
            connection.close()


def _full_text(statement: Statement) -> bytes:
    return statement.sql + (b"\n" + statement.data if statement.data else b"")


def _canonicalize(connection: Any, sql: bytes) -> str:
    """Format one statement by ClickHouse's parser: no comments, strings in one form, names as they are."""
    try:
        result = connection.query(f"SELECT formatQuerySingleLine({quote_text(_decode_sql(sql))})", "RawBLOB")
    except RuntimeError as error:
        raise EmbeddedEngineError(GUARD_SCOPE.sub("", _error_message(error))) from error
    return bytes(result.bytes()).decode()


def _decode_sql(sql: bytes) -> str:
    try:
        return sql.decode()
    except UnicodeDecodeError as error:
        raise EmbeddedEngineError("Code: 62. DB::Exception: the statement is not UTF-8. (SYNTAX_ERROR)") from error


def _run(connection: Any, statement: Statement) -> QueryResult:
    text = _full_text(statement)
    match = INSERT_WITH_DATA.match(text)
    if match is None:
        result = connection.query(_decode_sql(text), statement.format, params=dict(statement.parameters or {}))
        return QueryResult(bytes(result.bytes() or b""), result.rows_written(), result.bytes_written())
    with _memory_file() as file:
        file.write(memoryview(text)[match.end() :])
        result = _insert(connection, _decode_sql(match[1]), file, _decode_sql(match[3]), _decode_sql(match[2] or b""))
    return QueryResult(b"", result.rows_written(), result.bytes_written())


@contextmanager
def _memory_file() -> Iterator[BinaryIO]:
    """Open a file in memory."""
    with os.fdopen(os.memfd_create("insert"), "wb") as file:
        yield file


def _insert(connection: Any, sql: str, file: BinaryIO, format: str, settings: str = "") -> Any:
    """Insert the content of a memory file, and report errors.

    chdb's own ``send_insert`` reports nothing that fails while parts are written (docs/upstream.md).
    """
    file.flush()
    source = f"FROM INFILE '/proc/self/fd/{file.fileno()}' COMPRESSION 'none'"
    return connection.query(f"{sql} {source}{settings} FORMAT {format}")


def _apply_setting(connection: Any, name: str, value: str) -> None:
    if not SETTING_NAME.fullmatch(name):
        raise EmbeddedEngineError(f"Code: 115. DB::Exception: {name!r} is not a setting. (UNKNOWN_SETTING)")
    try:
        connection.query(f"SET {name} = {quote_text(value)}")
    except Exception as error:
        raise EmbeddedEngineError(f"{_error_message(error).strip()} Setting: {name}") from error


def _error_message(error: Exception) -> str:
    text = str(error)
    return text[text.find("Code: ") :] if "Code: " in text else f"Code: 1000. DB::Exception: {text}"


def _first_line(error: Exception) -> str:
    return next(iter(_error_message(error).splitlines()), "")[:200]
