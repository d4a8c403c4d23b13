"""The dashboards: their own form, and every query answered by a store that holds a run."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import seed_store
from tests.store.conftest import StoreProcess, prepared

GRAFANA = Path(__file__).resolve().parents[2] / "deploy" / "grafana"
DASHBOARDS = sorted((GRAFANA / "dashboards").glob("*.json"))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreProcess]:
    with prepared(tmp_path_factory.mktemp("store")) as built:
        seed_store.insert(built.sql, seed_store.run("small"))
        yield built


def expand_macros(sql: str) -> str:
    """As Grafana sends it: variables and macros filled in (grafana-clickhouse-datasource's documentation)."""
    sql = sql.replace("${run}", "small").replace("${model}", "policy")
    return re.sub(r"\$__timeFilter\((\w+)\)", r"\1 >= toDateTime('2026-01-01') AND \1 <= toDateTime('2027-01-01')", sql)


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_every_query_of_a_dashboard_is_answered(path: Path, store: StoreProcess) -> None:
    board = json.loads(path.read_text())
    choices = {"run": ["small"], "model": ["policy"]}
    for variable in board["templating"]["list"]:
        rows = store.sql.query(expand_macros(variable["query"])).result_rows
        assert [name for (name,) in rows] == choices[variable["name"]]
    empty = []
    for panel in board["panels"]:
        for target in panel["targets"]:
            answer = store.sql.query(expand_macros(target["rawSql"]))
            if panel["type"] == "trend" and answer.result_rows:
                assert panel["options"]["xField"] == answer.column_names[0]
            empty += [panel["title"]] if not answer.result_rows else []
    assert set(empty) <= {"Held-out reward", "Alerts"}, "this run has neither"


def test_boards_and_data_source_fit_each_other() -> None:
    (source,) = yaml.safe_load((GRAFANA / "provisioning/datasources/clickhouse.yaml").read_text())["datasources"]
    ids: list[Any] = []
    for path in DASHBOARDS:
        board = json.loads(path.read_text())
        ids.append(board["uid"])
        local = [panel["id"] for panel in board["panels"]]
        assert len(local) == len(set(local))
        assert {panel["datasource"]["uid"] for panel in board["panels"]} == {source["uid"]}
    assert len(ids) == len(set(ids)) == 2


def test_the_data_source_is_made_of_variables_that_are_set() -> None:
    """Grafana expands them by Go's `os.ExpandEnv`, which has no defaults; in braces a value is expanded twice."""
    (source,) = yaml.safe_load((GRAFANA / "provisioning/datasources/clickhouse.yaml").read_text())["datasources"]
    values = [str(value) for value in (*source["jsonData"].values(), *source["secureJsonData"].values())]
    variables = {value[1:] for value in values if "$" in value}
    assert all(re.fullmatch(r"[A-Z_]+", name) for name in variables)
    compose = yaml.safe_load((GRAFANA.parent / "compose.yaml").read_text())["services"]["grafana"]["environment"]
    assert variables == {name for name in compose if name.startswith("LIGHTNINGBUS_SQL")}
