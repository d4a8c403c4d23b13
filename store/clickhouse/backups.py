"""SQL that backs up a database of a ClickHouse server to S3 and restores it, and its errors. Pure."""

from dataclasses import dataclass

from lightningbus.store.clickhouse.quoting import quote_text

OCCUPIED = ("already contains some data", "has a different definition")
"""Parts of ClickHouse's errors for a table that is there already, with rows or with other columns."""


@dataclass(frozen=True, slots=True)
class BackupPlace:
    """A place for backups: a URL of S3 or of a server that speaks its protocol, and its keys."""

    url: str
    """URL of the directory that holds the backups, each below its name."""
    access_key: str = ""
    secret_key: str = ""

    def locate(self, name: str) -> str:
        """Return the place of a backup as ClickHouse's ``S3(...)``; without keys ClickHouse takes its own."""
        words = [f"{self.url.rstrip('/')}/{name}"]
        if self.access_key:
            words += [self.access_key, self.secret_key]
        return f"S3({', '.join(map(quote_text, words))})"


def build_backup(database: str, place: BackupPlace, name: str, base: str = "") -> str:
    """Build the statement that backs up a database; with the ``base`` of an earlier backup, what is new since."""
    settings = f" SETTINGS base_backup = {place.locate(base)}" if base else ""
    return f"BACKUP DATABASE `{database}` TO {place.locate(name)}{settings}"


def build_restore(database: str, place: BackupPlace, name: str, new_name: str = "") -> str:
    """Build the statement that restores a database, also under a new name; ClickHouse refuses one that has rows."""
    renamed = f" AS `{new_name}`" if new_name else ""
    return f"RESTORE DATABASE `{database}`{renamed} FROM {place.locate(name)}"


def explain_restore_error(message: str, database: str) -> str:
    """Explain ClickHouse's error for a restore into a database whose tables have rows or other columns; else empty."""
    if not any(mark in message for mark in OCCUPIED):
        return ""
    return f"the database {database} has tables already: give the restored one another name by --as"
