"""Backups of a database in S3: by the real engine, into a server that speaks S3's protocol."""

import subprocess
import sys
from pathlib import Path

import pytest
from clickhouse_connect.driver.exceptions import DatabaseError
from moto.moto_server.threaded_moto_server import ThreadedMotoServer
from typer.testing import CliRunner

from lightningbus.cli.app import app
from lightningbus.common.flat_settings import without_secrets
from lightningbus.store.clickhouse import client
from lightningbus.store.clickhouse.backups import BackupPlace, build_backup, build_restore, explain_restore_error
from lightningbus.store.clickhouse.quoting import quote_text
from tests.commands import environment
from tests.store.conftest import serving

PROGRAM = """
import sys
from chdb import session
engine = session.Session(sys.argv[1])
for statement in sys.argv[2:]:
    print(str(engine.query(statement, "CSV")).strip(), flush=True)
"""


def run_engine(directory: Path, *statements: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", PROGRAM, str(directory), *statements]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.integration
def test_a_database_comes_back_from_a_backup_and_what_is_new_since_its_base(tmp_path: Path) -> None:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        place = BackupPlace(f"http://{host}:{port}/bucket/lightningbus/", "key", "it's a secret")
        created = subprocess.run(["curl", "-sfX", "PUT", f"http://{host}:{port}/bucket"], check=False)
        assert created.returncode == 0
        done = run_engine(
            tmp_path / "first",
            "CREATE DATABASE events",
            "CREATE TABLE events.spans (name String) ENGINE MergeTree ORDER BY name",
            "INSERT INTO events.spans VALUES ('a'), ('b')",
            build_backup("events", place, "monday"),
            "INSERT INTO events.spans VALUES ('c')",
            build_backup("events", place, "tuesday", base="monday"),
        )
        assert done.returncode == 0 and done.stdout.count("BACKUP_CREATED") == 2, done.stderr
        rows = "SELECT groupArray(name) FROM (SELECT name FROM {}.spans ORDER BY name)"
        done = run_engine(
            tmp_path / "second",
            build_restore("events", place, "tuesday"), rows.format("events"),
            build_restore("events", place, "monday", new_name="older"), rows.format("older"),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "['a','b','c']" in done.stdout and "['a','b']" in done.stdout.splitlines()[-1]
        again = run_engine(tmp_path / "first", build_backup("events", place, "monday"))
        assert again.returncode != 0 and "BACKUP_ALREADY_EXISTS" in again.stderr
        over = run_engine(tmp_path / "first", build_restore("events", place, "monday"))
        assert over.returncode != 0, "a database that has rows stays as it is"
        changed = run_engine(
            tmp_path / "second",
            "DROP TABLE older.spans",
            "CREATE TABLE older.spans (name String, kind String) ENGINE MergeTree ORDER BY name",
            build_restore("events", place, "monday", new_name="older"),
        )
        for database, refused in {"events": over, "older": changed}.items():
            assert explain_restore_error(refused.stderr, database) == (
                f"the database {database} has tables already: give the restored one another name by --as"
            ), refused.stderr
        assert explain_restore_error(again.stderr, "events") == ""
    finally:
        server.stop()


@pytest.mark.parametrize(("arguments", "database"), [([], "lightningbus"), (["--as", "restored"], "restored")])
def test_a_restore_over_tables_ends_in_our_sentence(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], database: str
) -> None:
    class Occupied:
        def command(self, statement: str) -> None:
            raise DatabaseError(
                "Code: 608. DB::Exception: Cannot restore the table a.b because it already contains some data."
            )

    monkeypatch.setattr(client, "connect", lambda *_: Occupied())
    command = ["store", "restore", "monday", "--place", "http://127.0.0.1:1/b", "--sql", "http://127.0.0.1:1"]
    done = CliRunner().invoke(app, [*command, *arguments])
    assert done.exit_code == 2
    assert f"the database {database} has tables already: give the restored one another name by --as" in done.stderr


def test_texts_are_quoted_and_keys_may_be_the_servers() -> None:
    assert quote_text("a'b\\c") == "'a\\'b\\\\c'"
    place = BackupPlace("https://bucket.example/dir")
    assert build_backup("lightningbus", place, "x") == (
        "BACKUP DATABASE `lightningbus` TO S3('https://bucket.example/dir/x')"
    )


@pytest.mark.integration
@pytest.mark.parametrize(
    ("arguments", "variables", "sentence"),
    [
        (
            ["backup"],
            {"LIGHTNINGBUS_ADMIN_SQL": "http://127.0.0.1:1"},
            "say where backups are by --place or $LIGHTNINGBUS_BACKUP_URL",
        ),
        (["backup"], {}, "once the run has ended, copy runs/NAME/store by `cp -a` or `rsync -a`"),
        (["backup", "--place", "http://127.0.0.1:1/b"], {}, "say which ClickHouse server by --sql"),
        (["backup", "a b", "--place", "x"], {}, "--name: 'a b' is not a name"),
        (
            ["restore", "monday"],
            {"LIGHTNINGBUS_BACKUP_URL": "http://127.0.0.1:1/b", "LIGHTNINGBUS_ADMIN_SQL": "http://me:word@127.0.0.1:1"},
            "no ClickHouse answers at http://127.0.0.1:1",
        ),
    ],
)
def test_what_is_missing_is_said_in_a_sentence(arguments: list[str], variables: dict[str, str], sentence: str) -> None:
    command = [sys.executable, "-m", "lightningbus", "store", *arguments]
    done = subprocess.run(command, env={**environment(), **variables}, capture_output=True, text=True, check=False)
    assert done.returncode != 0 and sentence in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and "word" not in done.stderr


@pytest.mark.integration
def test_an_embedded_store_says_how_it_is_copied(tmp_path: Path) -> None:
    with serving(tmp_path / "store") as store:
        command = [sys.executable, "-m", "lightningbus", "store", "backup", "--place", "http://127.0.0.1:1/bucket"]
        command += ["--sql", without_secrets(store.url)]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "once the run has ended, copy runs/NAME/store by `cp -a`" in done.stderr
