"""Numbered SQL files, applied once and in order; an applied file that was edited is an error.

Views hold no data: after the migrations they are replaced at every start, first those of ``views.sql`` in their order,
then those of the reports. So a new column of a table is in every view that selects it.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources

from clickhouse_connect.driver.client import Client

from lightningbus.store.reports import REPORTS
from lightningbus.store.reports.counted_rewards import COUNTED_REWARDS


class MigrationError(Exception):
    """The database does not fit these migrations; the message names the first that differs."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One file."""

    name: str
    sql: str

    @property
    def digest(self) -> str:
        """SHA-256 of its text."""
        return hashlib.sha256(self.sql.encode()).hexdigest()

    def statements(self, database: str, cluster: str | None = None) -> Iterator[str]:
        """Yield its statements for a database, on one server or on all of a cluster; see `render_sql`.

        Each ends with a semicolon at the end of a line.
        """
        for statement in render_sql(self.sql, database, cluster).split(";\n"):
            lines = [line for line in statement.splitlines() if not line.lstrip().startswith("--")]
            if "".join(lines).strip():
                yield "\n".join(lines)


def render_sql(sql: str, database: str, cluster: str | None) -> str:
    """Fill in the placeholders of SQL; on a cluster the tables are replicated."""
    placeholders = {"{database}": database, "{on_cluster}": "", "{replicated}": ""}
    if cluster is not None:
        placeholders |= {"{on_cluster}": f" ON CLUSTER `{cluster}`", "{replicated}": "Replicated"}
    for placeholder, text in placeholders.items():
        sql = sql.replace(placeholder, text)
    return sql


def load_migrations() -> list[Migration]:
    """Load all migrations of this version, in order."""
    files = [file for file in resources.files(__name__).iterdir() if file.name.endswith(".sql")]
    return [Migration(file.name, file.read_text("utf-8")) for file in sorted(files, key=lambda file: file.name)]


BOOTSTRAP = (
    "CREATE DATABASE IF NOT EXISTS {database}{on_cluster}",
    "CREATE TABLE IF NOT EXISTS {database}.migrations{on_cluster} "
    "(name String, digest String, applied DateTime64(3) DEFAULT now64(3)) ENGINE = {replicated}MergeTree ORDER BY name",
)
COUNTED_REWARDS_VIEW = f"CREATE OR REPLACE VIEW {{database}}.counted_rewards{{on_cluster}} AS{COUNTED_REWARDS}"


def migrate(
    client: Client, database: str, migrations: Sequence[Migration] | None = None, cluster: str | None = None
) -> list[str]:
    """Bring the database up to date; return the names of the migrations applied now. Raise `MigrationError`."""
    for statement in BOOTSTRAP:
        client.command(render_sql(statement, database, cluster))
    rows = client.query(f"SELECT name, digest FROM {database}.migrations").result_rows
    known = {str(name): str(digest) for name, digest in rows}
    applied: list[str] = []
    for migration in load_migrations() if migrations is None else migrations:
        digest = known.get(migration.name)
        if digest == migration.digest:
            continue
        if digest is not None:
            raise MigrationError(
                f"migration {migration.name} was applied to database {database} and edited since: "
                "undo the edit and add a new migration instead"
            )
        for statement in migration.statements(database, cluster):
            client.command(statement)
        client.insert(f"{database}.migrations", [[migration.name, migration.digest]], ["name", "digest"])
        applied.append(migration.name)
    return applied


def create_views(client: Client, database: str, cluster: str | None = None) -> None:
    """Create or replace all views; the database is the client's default."""
    views = Migration(
        "views.sql", resources.files("lightningbus.store.clickhouse").joinpath("views.sql").read_text("utf-8")
    )
    for statement in views.statements(database, cluster):
        client.command(statement)
    client.command(render_sql(COUNTED_REWARDS_VIEW, database, cluster))
    for report in (each for each in REPORTS.values() if not each.required):
        client.command(render_sql(report.view, database, cluster))
