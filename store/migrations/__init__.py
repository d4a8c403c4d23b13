"""Numbered SQL files, applied once and in order; an applied one that was edited is refused."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources

from clickhouse_connect.driver.client import Client

DATABASE_MARK = "{database}"


class MigrationError(Exception):
    """The database does not fit these migrations; the message says which one."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One file."""

    name: str
    sql: str

    @property
    def digest(self) -> str:
        """SHA-256 of its text."""
        return hashlib.sha256(self.sql.encode()).hexdigest()

    def statements(self, database: str) -> Iterator[str]:
        """Its statements; each ends with a semicolon at the end of a line."""
        for statement in self.sql.replace(DATABASE_MARK, database).split(";\n"):
            lines = [line for line in statement.splitlines() if not line.lstrip().startswith("--")]
            if "".join(lines).strip():
                yield "\n".join(lines)


def shipped() -> list[Migration]:
    """All migrations of this version, in order."""
    files = [file for file in resources.files(__name__).iterdir() if file.name.endswith(".sql")]
    return [Migration(file.name, file.read_text("utf-8")) for file in sorted(files, key=lambda file: file.name)]


def migrate(client: Client, database: str, migrations: list[Migration] | None = None) -> list[str]:
    """Bring the database up to date; returns the names of what was applied now. Raises `MigrationError`."""
    client.command(f"CREATE DATABASE IF NOT EXISTS {database}")
    client.command(
        f"CREATE TABLE IF NOT EXISTS {database}.migrations "
        "(name String, digest String, applied DateTime64(3) DEFAULT now64(3)) ENGINE = MergeTree ORDER BY name"
    )
    rows = client.query(f"SELECT name, digest FROM {database}.migrations").result_rows
    known = {str(name): str(digest) for name, digest in rows}
    applied: list[str] = []
    for migration in shipped() if migrations is None else migrations:
        digest = known.get(migration.name)
        if digest == migration.digest:
            continue
        if digest is not None:
            raise MigrationError(
                f"migration {migration.name} was applied to database {database} and edited since: "
                "undo the edit and add a new migration instead"
            )
        for statement in migration.statements(database):
            client.command(statement)
        client.insert(f"{database}.migrations", [[migration.name, migration.digest]], ["name", "digest"])
        applied.append(migration.name)
    return applied
