"""What people may do to the store: ask, within limits, about the tables; and what only its writer may."""

import hashlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import clickhouse_connect
import pytest
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError, DatabaseError

from lightningbus.bus.errors import CredentialsError
from lightningbus.common.flat_settings import without_secrets
from lightningbus.store.clickhouse import users
from lightningbus.store.clickhouse.client import connect, connect_readonly
from lightningbus.store.clickhouse.query_limits import INTERACTIVE, UI, explain_error
from lightningbus.store.embedded import readonly_guard
from lightningbus.store.embedded.readonly_guard import KEY_FILE
from lightningbus.store.embedded.serving import writer_url
from lightningbus.store.reports import REPORTS
from tests.polling import HANG_SECONDS
from tests.store.conftest import StoreProcess, prepared


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The engine's directory."""
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def store(place: Path) -> Iterator[StoreProcess]:
    """An engine with all tables."""
    with prepared(place) as built:
        built.sql.command("INSERT INTO raw_runs (run_id) VALUES ('there')")
        yield built


@pytest.fixture(scope="module")
def anybody(store: StoreProcess) -> Client:
    """The stock client of whoever knows the address."""
    return clickhouse_connect.get_client(
        dsn=without_secrets(store.url), database="lightningbus", autogenerate_session_id=False
    )


def test_anybody_may_ask_whatever_the_tables_hold(anybody: Client) -> None:
    for statement in (
        "SELECT run_id FROM raw_runs",
        "-- a question\n WITH 'there' AS x SELECT x",
        "(SELECT 'there')",
        "FROM raw_runs SELECT run_id",
        "SELECT {a:String}",
        "SELECT 'INTO OUTFILE ''file''', `run_id` FROM raw_runs",
    ):
        assert "there" in str(anybody.query(statement, parameters={"a": "there"}).result_rows)
    for statement in (
        "SHOW TABLES",
        "EXISTS TABLE runs",
        "DESCRIBE runs",
        "EXPLAIN SELECT 1",
        "SHOW CREATE TABLE runs",
    ):
        assert anybody.query(statement).result_rows


WRITES = (
    "INSERT INTO raw_runs (run_id) VALUES ('mine')",
    "CREATE TABLE mine (a Int8) ENGINE = Memory",
    "CREATE TEMPORARY TABLE mine (a Int8)",
    "DROP TABLE raw_runs",
    "ALTER TABLE raw_runs DELETE WHERE 1",
    "OPTIMIZE TABLE raw_runs",
    "SET readonly = 0",
    "SELECT 1 SETTINGS readonly = 0",
    "SELECT 1 SETTINGS max_execution_time = 0",
    "SELECT 1 SETTINGS max_execution_time = 61",
    "SELECT 1 SETTINGS max_execution_time = DEFAULT",
    "SELECT 1 SETTINGS max_execution_time = 3, readonly = 0",
    "SELECT 1 SETTINGS max_execution_time = 3, additional_table_filters = {{'a': '1'}}",
    "SELECT 1 SETTINGS param_a = 1",
    "SELECT * FROM (SELECT 1 SETTINGS max_memory_usage = 9000000000)",
    "SELECT 1 FORMAT TSV SETTINGS format_schema = '/x'",
    "SYSTEM STOP MERGES",
    "KILL QUERY WHERE 1",
    "SELECT 1; DROP TABLE raw_runs",
)
OUTSIDE = (
    "SELECT file('{secret}')",
    "SELECT \"file\"('{secret}')",
    "SELECT `file` /* c */ ('{secret}')",
    "SELECT * APPLY file FROM (SELECT '{secret}')",
    "SELECT arrayMap(file, ['{secret}'])",
    "SELECT * FROM (SELECT 1 AS a) WHERE file('{secret}') != ''",
    "SELECT * FROM file('{secret}', 'LineAsString')",
    "DESCRIBE file('{secret}', 'CSVWithNames')",
    "DESC TABLE `file`('{secret}', 'CSVWithNames')",
    "SELECT 'written' INTO OUTFILE '{out}'",
    "SELECT 'written' INTO /* c */ OUTFILE '{out}' FORMAT CSV",
    "SHOW TABLES INTO OUTFILE '{out}'",
    "EXPLAIN SELECT 1 INTO OUTFILE '{out}'",
    "SELECT 1 PARALLEL WITH SELECT 2",
    "INSERT INTO FUNCTION file('{out}') SELECT 1",
    "SELECT * FROM url('{address}', 'LineAsString')",
    "DESCRIBE url('{address}', 'CSVWithNames')",
    "DESCRIBE TABLE s3('{address}bucket/x.csv')",
    "SELECT * FROM s3('{address}bucket/x.csv', 'CSV', 'a String')",
    "SELECT * FROM remote('{host}', system.one)",
    "SELECT * FROM mysql('{host}', 'a', 'b', 'c', 'd')",
    "SELECT * FROM executable('id', 'TSV', 'a String')",
    "SELECT * FROM Python(os)",
    "SELECT * FROM sqlite('{out}', 'a')",
    "SELECT * FROM `sqlite`('{out}', 'a')",
    "SELECT 1 IN (SELECT * FROM sqlite('{out}', 'a'))",
    "DESCRIBE sqlite('{out}', 'a')",
    "SELECT * FROM fileCluster('c', '{secret}', 'LineAsString')",
    "SELECT * FROM deltaLakeLocal('{out}')",
    "SELECT * FROM loop(raw_runs) LIMIT 1",
    "SELECT aiGenerate('x')",
)


@pytest.mark.parametrize("statement", WRITES)
def test_nobody_but_the_writer_changes_anything(anybody: Client, store: StoreProcess, statement: str) -> None:
    before = store.fetch_value("SELECT count() FROM raw_runs"), store.fetch_value("SELECT count() FROM system.tables")
    with pytest.raises(ClickHouseError):
        anybody.command(statement)
    assert (
        store.fetch_value("SELECT count() FROM raw_runs"),
        store.fetch_value("SELECT count() FROM system.tables"),
    ) == before


@pytest.mark.parametrize("statement", OUTSIDE)
def test_nobody_reaches_files_or_other_machines(anybody: Client, tmp_path: Path, statement: str) -> None:
    secret, out = tmp_path / "secret.csv", tmp_path / "out.csv"
    secret.write_text("password\nhunter2\n")
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        nobody.setblocking(False)
        host = f"127.0.0.1:{nobody.getsockname()[1]}"
        names = {"secret": secret, "out": out, "address": f"http://{host}/", "host": host}
        with pytest.raises(ClickHouseError) as refused:
            anybody.query(statement.format(**names))
        with pytest.raises(BlockingIOError):
            nobody.accept()
    assert "password" not in str(refused.value) and "hunter2" not in str(refused.value)
    assert not out.exists()


@pytest.mark.parametrize("setting", ["output_format_schema", "format_schema", "input_format_schema"])
async def test_no_setting_of_a_request_names_a_file(store: StoreProcess, tmp_path: Path, setting: str) -> None:
    out = tmp_path / "out"
    async with aiohttp.ClientSession() as http:
        request = {setting: str(out), "query": "SELECT 1 AS x FORMAT Protobuf"}
        async with http.get(without_secrets(store.url), params=request) as answer:
            assert answer.status == 403 and f"may not set {setting}" in await answer.text()
    assert not out.exists()


def test_no_setting_a_reader_may_choose_names_a_file(anybody: Client) -> None:
    sql = "SELECT name, type, value, description FROM system.settings WHERE has({names:Array(String)}, name)"
    by_name = {
        row[0]: row[1:]
        for row in anybody.query(sql, parameters={"names": sorted(readonly_guard.ALLOWED_SETTINGS)}).result_rows
    }
    assert by_name.keys() == readonly_guard.ALLOWED_SETTINGS
    for name, (_, _, description) in by_name.items():
        assert not any(word in description.lower() for word in (" file", "path", "schema ")), (name, description)


def test_limits_may_be_lowered_and_not_raised(store: StoreProcess) -> None:
    assert readonly_guard.restrict_settings({"max_threads": "100000"})["max_threads"] == str(os.cpu_count())
    settings = {"max_result_rows": "5", "max_execution_time": "0", "max_threads": "1", "readonly": "0"}
    assert readonly_guard.restrict_settings(settings) == {
        **{name: str(value) for name, value in INTERACTIVE.items()}, "max_result_rows": "5", "max_threads": "1",
        "readonly": "2",
    }  # fmt: skip
    with pytest.raises(
        readonly_guard.ReadOnlyViolationError, match="a reader may not set allow_experimental_eval_table_function"
    ):
        readonly_guard.restrict_settings({"allow_experimental_eval_table_function": "1"})


@pytest.mark.parametrize(
    ("settings", "rows"),
    [
        ({"max_result_rows": "1000", "result_overflow_mode": "break", "max_block_size": "500"}, 1000),
        ({"max_result_rows": "200", "result_overflow_mode": "break", "extremes": "0", "max_block_size": "100"}, 200),
        ({"extremes": "1"}, 5002),
    ],
)
async def test_drivers_bound_the_rows_of_an_answer(store: StoreProcess, settings: dict[str, str], rows: int) -> None:
    """As JDBC, DBeaver and Metabase do."""
    async with aiohttp.ClientSession() as http:
        sent = {"query": "SELECT number FROM numbers(5000)", **settings}
        async with http.get(store.url.replace("writer:", "reader:"), params=sent) as answer:
            text = await answer.text()
    assert answer.status == 200, text
    assert len(text.split()) == rows


def test_a_reader_lowers_its_limits_in_sql_and_by_the_stock_client(anybody: Client) -> None:
    sql = "SELECT toUInt64(getSetting('max_execution_time'))"
    assert anybody.query(f"{sql} SETTINGS max_execution_time = 3").first_row == (3,)
    assert anybody.query(sql, settings={"max_execution_time": 3}).first_row == (3,)
    lower = f"SELECT * FROM ({sql} SETTINGS max_execution_time = 3) SETTINGS max_threads = 1, session_timezone = 'UTC'"
    assert anybody.query(lower).result_rows
    with pytest.raises(DatabaseError, match="may lower max_execution_time from 60, and not set it to 61"):
        anybody.query(f"{sql} SETTINGS max_execution_time = 61")


def test_table_functions_that_reach_nothing_are_for_readers(anybody: Client) -> None:
    for source in ("numbers(1)", "values('a UInt8', 0)", "view(SELECT 0 AS a)", "generate_series(0, 0)"):
        assert anybody.query(f"SELECT * FROM {source}").first_row == (0,)
    assert anybody.query("SELECT format('{} {}', 'a', 'b')").first_row == ("a b",)


def test_the_writers_key_is_a_file_of_its_own_and_no_other_will_do(store: StoreProcess, place: Path) -> None:
    key = place / KEY_FILE
    assert key.stat().st_mode & 0o777 == 0o600 and key.read_text() in store.url
    with pytest.raises(Exception, match="this is not its key"):
        connect(store.url.replace(key.read_text(), "another"))


@pytest.mark.parametrize(
    "statement", ["INSERT INTO raw_runs (run_id) VALUES ('mine')", "SELECT 1 SETTINGS readonly = 0"]
)
def test_our_own_client_only_reads_even_as_the_writer(store: StoreProcess, statement: str) -> None:
    with pytest.raises(DatabaseError, match="READONLY"):
        connect_readonly(store.url).command(statement)


def test_a_reader_of_ours_has_the_lower_limits_it_was_made_with(store: StoreProcess) -> None:
    page = connect_readonly(without_secrets(store.url), limits=UI)
    text = ", ".join(f"toUInt64(getSetting('{name}'))" for name in UI)
    assert page.query(f"SELECT {text}").first_row == tuple(UI.values())


def test_a_key_that_was_cut_off_is_named_for_what_it_is(tmp_path: Path) -> None:
    (tmp_path / KEY_FILE).touch(0o600)
    with pytest.raises(CredentialsError, match=f"{tmp_path / KEY_FILE} holds no key of the writer"):
        writer_url(tmp_path, "http://127.0.0.1:8123")


def test_too_much_is_one_sentence_that_says_what_to_do(store: StoreProcess) -> None:
    client = connect_readonly(
        store.url, limits={**INTERACTIVE, "max_execution_time": 1, "max_memory_usage": 50_000_000}
    )
    for statement, advice in {
        "SELECT number FROM numbers(2000000)": "add a LIMIT",
        "SELECT sleepEachRow(1) FROM numbers(10) SETTINGS max_insert_threads = 1": "only read and set nothing",
        "SELECT sleep(3)": "ask about one run",
        "SELECT groupArray(number) FROM numbers(100000000)": "ask about one run",
        "SELECT * FROM nowhere": "has a store of this version written here?",
    }.items():
        with pytest.raises(DatabaseError) as refused:
            client.query(statement)
        error = explain_error(refused.value)
        assert advice in error and "\n" not in error and "version 2" not in error, error


def test_the_command_of_people_cannot_write(store: StoreProcess) -> None:
    line = [sys.executable, "-m", "lightningbus", "query", "DROP TABLE raw_runs", "--sql", store.url]
    done = subprocess.run(line, capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
    assert done.returncode == 2 and done.stderr.strip().endswith("questions only read and set nothing"), done.stderr
    assert store.fetch_value("SELECT count() FROM raw_runs") == 1


def test_every_report_is_a_question(anybody: Client) -> None:
    fields = {"a": "x", "b": "y", "rollout_id": "r"}
    for report in REPORTS.values():
        local = {parameter.name: fields[parameter.name] for parameter in report.parameters if parameter.default is None}
        anybody.query(report.query("lightningbus"), parameters=report.values(local, ""))


def test_the_users_of_a_server_are_statements_clickhouse_understands(store: StoreProcess) -> None:
    """The embedded engine has no users, so they are parsed and not made."""
    line = [sys.executable, "-m", "lightningbus", "store", "create-users", "--cluster", "all_of_them"]
    bare = {name: value for name, value in os.environ.items() if not name.endswith("_PASSWORD")}
    none = subprocess.run(line, env=bare, capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
    assert none.returncode == 2 and "put a password into $LIGHTNINGBUS_READER_PASSWORD" in none.stderr
    passwords = {"LIGHTNINGBUS_READER_PASSWORD": "it's \\ a secret", "LIGHTNINGBUS_WRITER_PASSWORD": "another"}
    printed = subprocess.run(
        line, env=bare | passwords, capture_output=True, text=True, timeout=HANG_SECONDS, check=True
    ).stdout
    assert not any(password in printed for password in passwords.values())
    assert all(hashlib.sha256(password.encode()).hexdigest() in printed for password in passwords.values())
    built = [statement.strip() for statement in printed.split(";") if statement.strip()]
    for statement in built:
        canonical = store.sql.query("SELECT formatQuerySingleLine({s:String})", parameters={"s": statement}).first_row
        assert canonical is not None and "ON CLUSTER all_of_them" in canonical[0], statement
    (profile,) = (item for item in built if "SETTINGS PROFILE OR REPLACE" in item)
    assert all(f"{name} = {value} MIN 1 MAX {value}" in profile for name, value in INTERACTIVE.items())
    rights = [item for item in built if item.startswith("GRANT") and users.READER in item]
    assert len(rights) == 1 and "SELECT ON `lightningbus`.*" in rights[0]


def test_a_server_that_makes_no_users_says_so_in_a_sentence(store: StoreProcess) -> None:
    line = [sys.executable, "-m", "lightningbus", "store", "create-users", "--sql", store.url]
    env = {**os.environ, "LIGHTNINGBUS_READER_PASSWORD": "secret"}
    done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
    assert done.returncode == 2 and "Not enough privileges" in done.stderr and "secret" not in done.stderr
