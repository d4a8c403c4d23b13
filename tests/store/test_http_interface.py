"""ClickHouse's HTTP interface over the embedded engine: the stock client cannot tell it from a server."""

import asyncio
import gzip
import math
import shutil
import socket
import subprocess
import sys
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import lz4.frame
import pytest
from backports import zstd
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import DatabaseError

from lightningbus.common.flat_settings import without_secrets
from lightningbus.store.embedded import origin_check
from lightningbus.store.embedded.http_interface import MAX_CONCURRENT_READERS
from tests.polling import HANG_SECONDS
from tests.store.conftest import SERVE, client, serving

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An engine in another process, behind its HTTP interface."""
    with serving(tmp_path_factory.mktemp("engine")) as store:
        yield store.url
    assert store.process.returncode == 0


@pytest.fixture(scope="module")
def sql(url: str) -> Client:
    """The stock client."""
    return client(url, "default")


def test_every_type_we_use_comes_back_as_it_went(sql: Client) -> None:
    sql.command(
        "CREATE TABLE kinds (id UInt32, name LowCardinality(String), ids Array(UInt32), logprobs Array(Float32), "
        "reward Nullable(Float64), tags Map(LowCardinality(String), String), at DateTime64(9, 'UTC'), ok Bool) "
        "ENGINE = MergeTree ORDER BY id"
    )
    at = datetime(2026, 11, 20, 12, 30, 1, 250000)  # the client gives UTC without saying so
    rows = [
        [1, "a'b\\c\n\t", [1, 2**32 - 1], [-0.5, 0.25], None, {"k": "ü", "": ""}, at, True],
        [2, "", [], [], math.inf, {}, at, False],
    ]
    sql.insert("kinds", rows)
    assert [list(row) for row in sql.query("SELECT * FROM kinds ORDER BY id").result_rows] == rows
    table = sql.query_arrow("SELECT id, ids FROM kinds ORDER BY id")
    assert table.column("ids").to_pylist() == [[1, 2**32 - 1], []]


def test_parameters_settings_and_large_answers(sql: Client) -> None:
    assert sql.query("SELECT {x:String} AS x, {n:UInt8} AS n", parameters={"x": "it's", "n": 7}).first_row == (
        "it's",
        7,
    )
    assert sql.query("SELECT getSetting('max_threads')", settings={"max_threads": 1}).first_row == (1,)
    assert sql.query("SELECT sum(number), count() FROM numbers(10)").first_row == (45, 10)
    assert len(sql.query("SELECT number, repeat('x', 100) FROM numbers(200000)").result_rows) == 200_000


def test_an_insert_of_compressed_columns_is_one_row_per_value(sql: Client) -> None:
    sql.command("CREATE TABLE many (n UInt64) ENGINE = MergeTree ORDER BY n")
    done = sql.insert("many", [list(range(100_000))], column_names=["n"], column_oriented=True)
    assert done.written_rows == 100_000
    assert sql.query("SELECT sum(n), count() FROM many").first_row == (4999950000, 100_000)


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("SELECT * FROM nowhere", "nowhere"),
        ("SELEKT 1", "Syntax error"),
        ("SELECT nothing_of_this_name", "nothing_of_this_name"),
    ],
)
def test_an_error_is_clickhouse_own_words_and_the_engine_lives_on(sql: Client, statement: str, says: str) -> None:
    with pytest.raises(DatabaseError, match=says):
        sql.query(statement)
    assert sql.query("SELECT 1").first_row == (1,)


async def test_plain_http_as_curl_would(url: str) -> None:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as http:
        async with http.get(url + "/ping") as answer:
            assert await answer.text() == "Ok.\n"
        async with http.get(url, params={"query": "SELECT 1 + 1 FORMAT JSONEachRow"}) as answer:
            assert await answer.json(content_type=None) == {"plus(1, 1)": 2}
        async with http.post(url, data="SELECT 'body'") as answer:
            assert await answer.text() == "body\n"
        async with http.post(url, params={"query": "SELECT {a:UInt8}", "param_a": "3"}) as answer:
            assert await answer.text() == "3\n"
        async with http.post(url, data=b"\xff\xfe\x00") as answer:
            assert answer.status == 400
        packed = {"gzip": gzip.compress, "zstd": zstd.compress, "lz4": lz4.frame.compress}
        for encoding, compress in packed.items():
            headers = {"Content-Encoding": encoding}
            async with http.post(url, data=compress(b"SELECT 7"), headers=headers) as answer:
                assert await answer.text() == "7\n", encoding
        for broken in (b"x", b"this is not gzip at all"):
            async with http.post(url, data=broken, headers={"Content-Encoding": "gzip"}) as answer:
                assert answer.status == 400
        async with http.post(url, data="SELECT 1", params={"max_threads": "no"}) as answer:
            assert answer.status >= 400
            assert "max_threads" in await answer.text()


@pytest.mark.parametrize(
    ("sql", "params", "status"),
    [
        ("SELECT 8 AS a", {"default_format": "Native", "client_protocol_version": "54460"}, 501),
        ("SELECT 8 AS a FORMAT Native", {"client_protocol_version": "54454"}, 501),
        ("SELECT 8 AS a FORMAT native SETTINGS max_threads = 1", {"client_protocol_version": "1"}, 501),
        ("INSERT INTO t FORMAT Native\n", {"client_protocol_version": "54454"}, 501),
        ("SELECT 8 AS a", {"default_format": "Native"}, 200),
        ("SELECT 8 AS a", {"default_format": "Native", "client_protocol_version": "0"}, 200),
        ("SELECT 8 AS a FORMAT JSON", {"default_format": "Native", "client_protocol_version": "54460"}, 200),
        ("SELECT 8 AS a", {"client_protocol_version": "54460"}, 200),
    ],
)
async def test_native_of_a_protocol_version_is_refused_in_a_sentence(
    url: str, sql: str, params: dict[str, str], status: int
) -> None:
    """A client that names a version reads another form of Native than the engine writes."""
    async with aiohttp.ClientSession() as http, http.post(url, data=sql, params=params) as answer:
        body = await answer.read()
        assert answer.status == status, body
        assert (b"client_protocol_version" in body and b"--url" in body) == (status == 501)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost:8123"}, 200),
        ({"Host": "rebound.example:8123"}, 421),
        ({"Origin": "https://site.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://["}, 403),
        ({"Host": "localhost:8123", "Origin": "http://localhost:8123", "Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "none"}, 200),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_pages_of_other_sites_ask_nothing(url: str, headers: dict[str, str], status: int, method: str) -> None:
    async with (
        aiohttp.ClientSession() as http,
        http.request(method, url, params={"query": "SELECT 1"}, headers=headers) as answer,
    ):
        assert answer.status == status
        assert (await answer.text() == "1\n") == (status == 200)


@pytest.mark.parametrize(
    ("host", "listens", "known"),
    [
        ("store.example:8123", "store.example", True),
        ("store.example", "127.0.0.1", False),
        ("10.0.0.7:8123", "0.0.0.0", True),
        ("[fe80::1]:8123", "::", True),
        ("store:8123", "0.0.0.0", True),
        ("store:8123", "127.0.0.1", False),
        ("rebound.example", "0.0.0.0", False),
        ("More.Example", "0.0.0.0", True),
        (socket.gethostname(), "0.0.0.0", True),
    ],
)
def test_a_store_knows_its_names(host: str, listens: str, known: bool) -> None:
    assert origin_check.is_allowed_host(host, listens, ["more.example"]) is known


async def test_head_of_the_root_is_answered_as_clickhouse_does(url: str) -> None:
    async with aiohttp.ClientSession() as http, http.head(url) as answer:
        assert answer.status == 200


@pytest.mark.parametrize(
    ("statement", "status", "code", "says"),
    [
        ("SELEKT 1", 400, 62, "Syntax error: failed at position 8"),
        ("SELECT 1 +", 400, 62, "Syntax error: failed at position 11"),
        ("SELECT (1", 400, 62, "is never closed. (SYNTAX_ERROR)"),
        ("SELECT 'a: In scope x' +", 400, 62, "(SYNTAX_ERROR)"),
        ("SELECT * FROM asked(a = 1)", 400, 456, "Substitution `b` is not set"),
        ("SELECT * FROM asked", 400, 51, "(EMPTY_LIST_OF_COLUMNS_QUERIED)"),
        ("SELECT * FROM nowhere", 404, 60, "nowhere"),
    ],
)
async def test_a_readers_mistake_is_answered_in_clickhouse_own_words_and_code(
    url: str, sql: Client, statement: str, status: int, code: int, says: str
) -> None:
    sql.command("CREATE OR REPLACE VIEW asked AS SELECT {a:UInt8} AS a, {b:UInt8} AS b")
    async with (
        aiohttp.ClientSession() as http,
        http.post(without_secrets(url), data=statement, params={"database": "default"}) as answer,
    ):
        text = await answer.text()
        assert (answer.status, answer.headers["X-ClickHouse-Exception-Code"]) == (status, str(code)), text
        assert text.startswith(f"Code: {code}. DB::Exception: ") and says in text
        assert "formatQuery" not in text


PACKED = {"gzip": gzip.compress, "deflate": zlib.compress, "zstd": zstd.compress, "lz4": lz4.frame.compress}


@pytest.mark.parametrize("encoding", PACKED)
async def test_a_readers_body_is_small_also_once_it_is_inflated(url: str, encoding: str) -> None:
    bomb = PACKED[encoding](b"SELECT 1" + b" " * 256 * 1024 * 1024)
    assert len(bomb) < 2 * 1024 * 1024
    headers = {"Content-Encoding": encoding}
    async with aiohttp.ClientSession() as http:
        async with http.post(without_secrets(url), data=bomb, headers=headers) as answer:
            assert answer.status == 413
        async with http.post(without_secrets(url), data=PACKED[encoding](b"SELECT 7"), headers=headers) as answer:
            assert await answer.text() == "7\n"


async def test_a_long_body_of_a_reader_is_refused_before_it_is_read(url: str) -> None:
    at = urlsplit(url)
    reading, writing = await asyncio.open_connection(at.hostname, at.port)
    writing.write(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 200000000\r\n\r\n")
    assert b"413" in await asyncio.wait_for(reading.readline(), HANG_SECONDS)
    writing.close()


async def test_a_wrong_key_is_refused_before_the_body_is_read(url: str) -> None:
    at = urlsplit(url)
    reading, writing = await asyncio.open_connection(at.hostname, at.port)
    key = b"X-ClickHouse-User: writer\r\nX-ClickHouse-Key: wrong\r\n"
    writing.write(b"POST / HTTP/1.1\r\nHost: localhost\r\n" + key + b"Content-Length: 1000\r\n\r\n")
    assert b"403" in await asyncio.wait_for(reading.readline(), HANG_SECONDS)
    writing.close()


async def test_readers_beyond_what_is_answered_at_once_are_told_to_come_again(url: str) -> None:
    at = urlsplit(url)
    begun = [await asyncio.open_connection(at.hostname, at.port) for _ in range(MAX_CONCURRENT_READERS)]
    for _, writing in begun:
        writing.write(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8\r\n\r\nSELECT")
    async with aiohttp.ClientSession() as http, asyncio.timeout(HANG_SECONDS):
        while True:  # until all of them are being read
            async with http.post(without_secrets(url), data="SELECT 1") as answer:
                if answer.status == 503:
                    assert "TOO_MANY_SIMULTANEOUS_QUERIES" in await answer.text()
                    break
        async with http.post(url, data="SELECT 1") as answer:
            assert answer.status == 200, "the writer is not held up by readers"
        for reading, writing in begun:
            writing.write(b" 2")
            assert b"200" in await reading.readline()
            writing.close()
        async with http.post(without_secrets(url), data="SELECT 3") as answer:
            assert await answer.text() == "3\n"


def test_open_files_are_three_for_each_thread_and_some_hundred_at_most(tmp_path: Path) -> None:
    """Twice as many clients at once as questions are answered, twice: the second time opens no more than the bound."""
    with serving(tmp_path / "engine") as store:
        client(store.url, "default").command("CREATE TABLE t (n UInt64) ENGINE = MergeTree ORDER BY n")

        def work(_: int) -> None:
            sql = client(store.url, "default")
            for _ in range(10):
                sql.insert("t", [[number] for number in range(100)], ["n"])
                sql.query("SELECT n, count(), uniqExact(n) FROM t GROUP BY n ORDER BY n")

        proc = Path(f"/proc/{store.process.pid}")
        for _ in range(2):
            with ThreadPoolExecutor(8) as clients:
                list(clients.map(work, range(16)))
            files, threads = (len(list((proc / name).iterdir())) for name in ("fd", "task"))
            assert files <= 3 * threads + 100
            assert files <= 1024


def test_another_process_cannot_open_the_directory(tmp_path: Path, url: str, sql: Client) -> None:
    where = sql.query("SELECT path FROM system.disks").result_rows[0][0]
    command = [sys.executable, "-c", SERVE, where]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=HANG_SECONDS, check=False
    )
    assert done.returncode != 0 and "is in use by another process" in done.stderr


def test_a_copy_of_a_store_that_followed_links_is_one_sentence(tmp_path: Path, sql: Client) -> None:
    sql.command("CREATE DATABASE linked")
    sql.command("CREATE TABLE linked.numbers (number UInt8) ENGINE = MergeTree ORDER BY number")
    where = Path(sql.query("SELECT path FROM system.disks").result_rows[0][0])
    assert (where / "metadata" / "linked").is_symlink()
    (tmp_path / "copy" / "metadata" / "linked").mkdir(parents=True)
    shutil.copy(where / "metadata" / "linked.sql", tmp_path / "copy" / "metadata")
    done = subprocess.run(
        [sys.executable, "-c", SERVE, tmp_path / "copy"], stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=HANG_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode != 0 and "is a copy with files in place of links" in done.stderr
