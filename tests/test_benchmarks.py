"""What the benchmarks' page says is what was measured."""

import json
from pathlib import Path

from benchmarks import kv_cache
from benchmarks.__main__ import rewrite
from benchmarks.asynchrony.__main__ import summary
from benchmarks.asynchrony.job import key_of, read, seconds_to

HERE = Path(__file__).resolve().parents[1] / "benchmarks"


def table_of(name: str) -> str:
    """The table between a benchmark's marks."""
    page = (HERE / "README.md").read_text()
    return page.split(f"<!-- make {name}: begin -->\n")[1].split(f"\n<!-- make {name}: end -->")[0]


def test_the_tables_are_the_results() -> None:
    assert table_of("bench-kv") == kv_cache.table(json.loads((HERE / "results" / "kv_cache.json").read_text()))
    results = read(HERE / "results" / "async.json")
    assert table_of("bench-async") == summary(results)
    assert len({key_of(result) for result in results}) == len(results)


def test_the_page_of_the_store_shows_what_was_measured_last() -> None:
    page = (HERE / "README.md").read_text()
    assert page == rewrite(page)


def test_the_target_is_reached_when_two_evaluations_are_there_on_average() -> None:
    assert seconds_to([(0, 0.0), (5, 0.95), (10, 0.8), (15, 1.0)], 0.9) == 15
    assert seconds_to([(0, 0.0), (5, 0.95)], 0.9) is None
