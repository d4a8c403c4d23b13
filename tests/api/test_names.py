"""`import lightningbus` is cheap, and every public name of it is documented."""

import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import lightningbus as lb
from docs.reference.blocking_api import TARGET, render_blocking_api
from lightningbus.run.results.run_record import write_record
from tests.commands import ROOT

HEAVY = {"torch", "vllm", "verl", "chdb", "clickhouse_connect", "pandas", "transformers", "nats", "rich", "pydantic"}
PAGE = (ROOT / "docs" / "api" / "python.md").read_text()


@pytest.mark.integration
def test_importing_it_loads_nothing_else() -> None:
    script = "import sys, lightningbus; print(*dir(lightningbus)); print(*sys.modules)"
    names, modules = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert not HEAVY & {name.partition(".")[0] for name in modules.split()}
    assert sorted(names.split()) == sorted(lb.__all__)


@pytest.mark.integration
def test_a_name_whose_packages_are_missing_says_what_to_install() -> None:
    script = (
        "import sys; sys.modules['clickhouse_connect'] = None; import lightningbus as lb\n"
        "try: lb.connect\nexcept ImportError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "pip install 'lightningbus[store]'" in done.stdout


@pytest.mark.parametrize("name", lb.__all__)
def test_every_public_name_has_a_docstring_and_a_place_in_the_page(name: str) -> None:
    value: Any = getattr(lb, name)
    path = value.__name__ if inspect.ismodule(value) else f"{value.__module__}.{name}"
    assert re.search(rf"^::: {re.escape(path)}$", PAGE, re.M), path
    assert inspect.getdoc(value)
    for method, function in vars(value).items() if inspect.isclass(value) else ():
        assert method.startswith("_") or not callable(function) or inspect.getdoc(function), f"{name}.{method}"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'trian'"):
        lb.trian  # type: ignore[attr-defined]  # noqa: B018


def test_a_notebook_shows_an_error_of_the_user_as_a_sentence() -> None:
    assert lb.UserError("there is no run 'a'")._render_traceback_() == ["UserError: there is no run 'a'"]
    assert lb.RunInterrupted("run 'a' is stopped")._render_traceback_() == ["run 'a' is stopped"]


@pytest.mark.parametrize(
    ("options", "settings", "name"),
    [
        ({}, None, "run"),
        ({}, {"name": "small"}, "small"),
        ({"name": "large"}, {"name": "small"}, "large"),
        ({}, "small.yaml", "of-the-file"),
        ({}, "none.yaml", "run"),
    ],
)
def test_a_run_that_is_interrupted_is_named(
    options: dict[str, Any], settings: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("small.yaml").write_text("name: of-the-file")

    def interrupt(*arguments: object, **fields: object) -> None:
        if has_begun:
            (Path("runs") / name).mkdir(parents=True)
            write_record(Path("runs") / name, {})
        raise KeyboardInterrupt

    monkeypatch.setattr("lightningbus.api.blocking.atrain", interrupt)
    has_begun = False
    with pytest.raises(
        lb.RunInterrupted, match=f"run '{name}' is stopped: nothing had started, and no run was changed"
    ):
        lb.train(settings=settings, **options)
    has_begun = True
    with pytest.raises(lb.RunInterrupted, match=f"run '{name}' is stopped and its data is kept"):
        lb.train(settings=settings, **options)


@pytest.mark.integration
def test_the_blocking_api_is_generated_from_the_async_one() -> None:
    assert TARGET.read_text() == render_blocking_api(), "`python -m docs.reference` writes it"


def parameters_of(function: Any) -> list[tuple[str, Any, Any, str]]:
    """Name, kind, default and annotation of each parameter."""
    return [
        (each.name, each.kind, each.default, str(each.annotation))
        for each in inspect.signature(function).parameters.values()
    ]


@pytest.mark.parametrize("name", ["train", "evaluate", "serve", "connect"])
def test_a_function_and_its_async_form_have_one_signature(name: str) -> None:
    blocking, awaited = getattr(lb, name), getattr(lb, f"a{name}")
    assert parameters_of(blocking) == parameters_of(awaited) and inspect.iscoroutinefunction(awaited)


def test_a_session_and_its_async_form_have_the_same_methods() -> None:
    blocking, awaited = (
        {name: method for name, method in vars(kind).items() if not name.startswith("_")}
        for kind in (lb.Session, lb.AsyncSession)
    )
    assert blocking.keys() == awaited.keys()
    for name, method in blocking.items():
        assert parameters_of(method) == parameters_of(awaited[name]), name
        assert inspect.iscoroutinefunction(awaited[name]), name
