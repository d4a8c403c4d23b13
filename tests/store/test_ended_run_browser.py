"""The page of a run that has ended, in a real browser: who worked for it, its logs and its checkpoints."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lightningbus.run.run_data.local_files import LocalFiles
from lightningbus.run.run_directory.directory import RunDirectory
from lightningbus.schemas.fleet import Alert
from lightningbus.store.clickhouse.client import connect
from lightningbus.store.ui.client import Reader, StoreState
from tests import seed_store
from tests.polling import HANG_SECONDS
from tests.store.browser import RUN, alive, browser, expect, pages_of
from tests.store.conftest import prepared

pytestmark = pytest.mark.e2e

__all__ = ["browser"]


@pytest.fixture
def page(browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The page of the run, on which anything the console calls an error is one."""
    monkeypatch.chdir(tmp_path)
    run = RunDirectory(Path("runs").resolve() / RUN).create()
    (run.path / "logs" / "learner.log").write_text("<script>alert(1)</script> step 1\n")
    (run.path / "checkpoints" / "weights.safetensors").write_bytes(bytes(3000))
    page = browser.new_page(viewport={"width": 390, "height": 844}, reduced_motion="reduce")
    page.set_default_timeout(1000 * HANG_SECONDS)
    texts: list[str] = []
    page.on("console", lambda message: texts.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: texts.append(str(error)))
    with prepared(tmp_path / "store") as store:
        seed_store.insert(store.sql, seed_store.run(RUN, steps=3, groups=2, seed=3))
        reader = Reader()
        reader.use(connect(store.url), StoreState.FINISHED)
        with pages_of(store.url, reader, members=list, files=LocalFiles()) as url:
            page.goto(f"{url}/#/run/{RUN}")
            yield page
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, "nothing is cut"
            page.close()
    assert texts == []


def test_the_fleet_of_an_ended_run_stays_with_its_logs_and_checkpoints(page: Any) -> None:
    rows = page.locator("#fleet tbody tr")
    rows.first.wait_for()
    roles = [row.locator("td").first.inner_text() for row in rows.all()]
    assert roles == sorted(roles, key=["learner", "inference", "runner"].index) and set(roles) >= {"learner", "runner"}
    expect(rows.first).to_contain_text("step 3")
    expect(rows.first.locator("td").last).to_contain_text("ago")
    files = page.locator("#files tbody tr")
    files.first.wait_for()
    assert {row.locator("td").first.inner_text() for row in files.all()} == {
        "logs/learner.log", "checkpoints/weights.safetensors",
    }  # fmt: skip
    with page.context.expect_page() as opened:
        page.get_by_role("link", name="logs/learner.log").click()
    assert opened.value.locator("body").inner_text().strip() == "<script>alert(1)</script> step 1"
    expect(page.get_by_role("link", name="checkpoints/weights.safetensors")).to_have_count(0)


def test_the_alerts_of_an_ended_run_stay(browser: Any, tmp_path: Path) -> None:
    at_ns = seed_store.START_NS + 10**12
    alerts = [
        Alert(role="learner", reason="nothing is learned", fired_at_ns=at_ns),
        Alert(role="runner", reason="no runner is there", fired_at_ns=at_ns + 1),
        Alert(role="runner", reason="no runner is there", resolved=True, fired_at_ns=at_ns + 2),
    ]
    with prepared(tmp_path / "store") as store:
        seed_store.insert(store.sql, [*seed_store.run(RUN, steps=1, groups=1, seed=3), *alerts])
        reader = Reader()
        reader.use(connect(store.url), StoreState.FINISHED)
        with pages_of(store.url, reader, members=list) as url:
            page = browser.new_page()
            page.set_default_timeout(1000 * HANG_SECONDS)
            page.goto(f"{url}/#/run/{RUN}")
            problems = page.locator("#fleet p.problem:visible")
            problems.first.wait_for()
            expect(problems).to_have_count(2)
            expect(problems.first).to_contain_text(": nothing is learned")
            expect(problems.last).to_contain_text(": no runner is there (over)")
            page.close()


def test_who_was_seen_last_is_asked_only_where_it_is_shown(browser: Any, tmp_path: Path) -> None:
    """The store counts all model calls of the run for it."""
    with prepared(tmp_path / "store") as store:
        seed_store.insert(store.sql, seed_store.run(RUN, steps=3, groups=2, seed=3))
        reader, living = Reader(), alive()
        reader.use(connect(store.url), StoreState.LIVE)
        with pages_of(store.url, reader, members=lambda: living) as url:
            page = browser.new_page()
            page.set_default_timeout(1000 * HANG_SECONDS)
            urls: list[str] = []
            page.on("request", lambda request: urls.append(request.url))
            page.goto(f"{url}/#/run/{RUN}")
            roles = page.locator("#fleet tbody tr")
            expect(roles).to_have_count(len(living))
            with page.expect_response(lambda response: "/api/run/served" in response.url):
                seed_store.insert(store.sql, seed_store.run(RUN, steps=4, groups=2, seed=4))
            assert not [each for each in urls if "last_seen" in each]
            with page.expect_response(lambda response: "last_seen" in response.url):
                reader.use(connect(store.url), StoreState.FINISHED)
            expect(roles.first).to_contain_text("step")
            expect(roles.first.locator("td").last).to_contain_text("ago")
            page.close()
