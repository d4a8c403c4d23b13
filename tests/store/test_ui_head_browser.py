"""The head of a run, axes, words for metrics and files of charts, in a real browser, wide and narrow."""

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from lightningbus.schemas.spans import SpanBatch
from tests import seed_store
from tests.polling import HANG_SECONDS
from tests.store.browser import RUN, browser, expect, pages_of
from tests.store.conftest import StoreProcess, prepared

pytestmark = pytest.mark.e2e

__all__ = ["browser"]
SIZES = [{"width": 1440, "height": 900}, {"width": 390, "height": 844}]
GEOMETRY = (Path(__file__).parent / "chart_geometry.js").read_text()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the pages of a run of twelve steps with evaluations, and of one of a single step."""
    with prepared(tmp_path_factory.mktemp("store")) as store:
        fill(store)
        with pages_of(store.url) as url:
            yield url


def fill(store: StoreProcess) -> None:
    """Insert both runs."""
    seed_store.insert(store.sql, seed_store.run(RUN, steps=12, groups=3, seed=3))
    seed_store.insert(store.sql, seed_store.evaluations(RUN, (0, 6, 12)), first=50_000)
    seed_store.insert(store.sql, seed_store.run("one", steps=1, groups=2, seed=2), first=100_000)
    unnamed = [
        replace(event, end=replace(event.end, rewards={})) if isinstance(event, SpanBatch) and event.end else event
        for event in seed_store.run("nothing-named", steps=2, groups=2, seed=2)
    ]
    seed_store.insert(store.sql, unnamed, first=150_000)


@pytest.fixture(params=SIZES, ids=lambda size: f"{size['width']}px")
def page(browser: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A page of both widths, on which anything the console calls an error is one."""
    built = browser.new_page(viewport=request.param, reduced_motion="reduce", accept_downloads=True)
    built.set_default_timeout(1000 * HANG_SECONDS)
    texts: list[str] = []
    built.on("console", lambda message: texts.append(message.text) if message.type in ("error", "warning") else None)
    built.on("pageerror", lambda error: texts.append(str(error)))
    yield built
    assert built.evaluate("document.documentElement.scrollWidth") <= request.param["width"], "nothing is cut"
    built.close()
    assert texts == []


def open_run(page: Any, site: str, run: str = RUN, query: str = "") -> None:
    """Open a run and wait for its head and its charts."""
    page.goto(f"{site}/#/run/{run}{query}")
    page.locator("#overview .tile").first.wait_for()
    page.locator("#chart-rewards canvas").wait_for()
    page.locator('[data-metric="actor/entropy"] canvas').wait_for()


def places(page: Any, chart: str = "#chart-rewards") -> list[float]:
    """The x of the points of a chart."""
    xs: list[float] = page.locator(f"{chart} .chart").evaluate("root => root.plot.data[0]")
    return xs


def test_the_head_says_how_the_run_is(page: Any, site: str) -> None:
    open_run(page, site)
    tiles = {tile.splitlines()[0]: tile.splitlines()[1:] for tile in page.locator(".tile").all_inner_texts()}
    assert list(tiles) == [
        "mean reward, training",
        "mean reward, greedy",
        "mean reward, sampled",
        "step",
        "rollouts an hour",
        "tokens an hour",
        "settings",
    ]
    assert tiles["step"][0] == "12 of 12" and " to " in tiles["mean reward, sampled"][0]
    assert "Qwen3-0.6B" in tiles["settings"] and "groups per step" in tiles["settings"]
    assert page.locator("#state").inner_text() in ("running", "finished")


def test_curves_are_drawn_over_five_axes_and_the_address_keeps_the_choice(page: Any, site: str) -> None:
    open_run(page, site)
    assert places(page) == list(range(13))
    ends = {}
    for name in ("version", "tokens", "rollouts", "time"):
        page.locator("select[name=axis]").select_option(name)
        label = page.locator("select[name=axis] option:checked").inner_text()
        wanted = "minutes" if name == "time" else label
        page.locator(f'#chart-rewards .chart[aria-label="mean reward over {wanted}"] canvas').wait_for()
        page.locator(f'[data-metric="actor/entropy"] .chart[aria-label="entropy over {wanted}"] canvas').wait_for()
        xs = places(page)
        assert xs == sorted(xs) and xs[0] == 0
        ends[name] = xs[-1]
        assert page.evaluate(GEOMETRY)["faults"] == []
    assert ends["version"] == 12 and ends["rollouts"] == 12 * 12 and ends["tokens"] > 3000
    assert ends["time"] == pytest.approx((11 * 20 + 3) * 1000), "from the first step's start to the last step's end"
    page.reload()
    page.locator("#chart-rewards canvas").wait_for()
    assert page.locator("select[name=axis]").input_value() == "time"


def test_an_axis_that_is_chosen_while_charts_load_is_the_one_they_end_with(page: Any, site: str) -> None:
    open_run(page, site)
    rewards, axes = list[Any](), list[Any]()
    page.route("**/api/run/rewards*", lambda route: rewards.append(route))
    choice = page.locator("select[name=axis]")
    with page.expect_request("**/api/run/rewards*"):
        choice.select_option("version")
    page.route("**/api/run/axes*", lambda route: axes.append(route))
    choice.select_option("tokens")
    chart = '#chart-rewards .chart[aria-label="mean reward over {}"] canvas'
    for route in rewards:
        route.continue_()
    page.locator(chart.format("weight version")).wait_for()
    page.route("**/api/run/*", lambda route: route.continue_())  # the newest route is the one that counts
    for route in axes:
        route.continue_()
    page.locator(chart.format("trained tokens")).wait_for()


def test_a_run_of_one_point_has_axes_that_fit_it(page: Any, site: str) -> None:
    open_run(page, site, "one")
    page.locator("#served canvas").wait_for()
    assert page.evaluate(GEOMETRY)["faults"] == []
    spans = page.locator(".chart").evaluate_all(
        "all => all.map(one => [one.plot.scales.x.max - one.plot.scales.x.min, one.plot.series[0].label])"
    )
    assert all(span < 4 or 10_000 <= span < 12_000 for span, _ in spans), spans


def test_cards_say_that_they_load_and_no_card_is_blank(page: Any, site: str) -> None:
    waiting: list[Any] = []
    page.route("**/api/run/throughput*", lambda route: waiting.append(route))
    page.goto(f"{site}/#/run/{RUN}")
    page.locator("#chart-rewards canvas").wait_for()
    body = page.locator("#chart-throughput .body")
    expect(body).to_have_attribute("aria-busy", "true")
    expect(body).to_have_text("loading …")
    assert page.locator(".panel > .body:empty").count() == 0
    waiting[0].continue_()
    page.locator("#chart-throughput canvas").wait_for()
    expect(body).not_to_have_attribute("aria-busy", "true")


def test_each_named_reward_has_a_chart(page: Any, site: str) -> None:
    open_run(page, site)
    boxes = page.locator("#named-rewards [data-reward]")
    expect(boxes).to_have_count(2)
    assert boxes.locator("h2").all_inner_texts() == ["brief", "correct"]
    same = "root => root.plot.data.slice(0, 2)"
    correct = page.locator('[data-reward="correct"] .chart')
    correct.locator("canvas").wait_for()
    assert correct.evaluate(same) == page.locator("#chart-rewards .chart").evaluate(same)
    page.goto(f"{site}/#/run/nothing-named")
    page.locator("#chart-rewards canvas").wait_for()
    expect(page.locator("#named-rewards")).to_be_hidden()


def saved(page: Any, panel: str, kind: str) -> bytes:
    """The file of a panel."""
    page.locator(f"{panel} > header > .download > summary").click()
    with page.expect_download() as started:
        page.locator(f"{panel} > header > .download").get_by_role("button", name=kind).click()
    assert started.value.suggested_filename.startswith("adding-")
    return Path(started.value.path()).read_bytes()


def test_charts_tables_and_bars_are_saved_as_csv_json_and_png(page: Any, site: str) -> None:
    open_run(page, site)
    page.locator("#fleet tbody tr").first.wait_for()
    rows = list(csv.DictReader(io.StringIO(saved(page, "#chart-rewards", "CSV").decode())))
    assert {row["series"] for row in rows} == {"train", "greedy", "sampled"}
    assert {"training step", "weight version", "value", "low", "high", "rollouts"} <= rows[0].keys()
    fleet = json.loads(saved(page, "#fleet", "JSON"))
    assert [row["role"] for row in fleet] == ["learner", "inference", "runner", "store"]
    outcomes = json.loads(saved(page, "#chart-outcomes", "JSON"))
    assert {row["name"] for row in outcomes} == {"ok", "agent_error"} and 0 < outcomes[0]["value"] <= 1
    for panel in ("#chart-rewards", "#fleet", "#chart-outcomes"):
        assert_has_ink(saved(page, panel, "PNG"))


def assert_has_ink(png: bytes) -> None:
    """Check that a picture has its text in it: more than two colours, and a size."""
    from PIL import Image

    image = Image.open(io.BytesIO(png)).convert("RGB")
    assert image.width > 100 and image.height > 50 and len(image.getcolors(1 << 24) or ()) > 10


def test_text_of_an_agent_is_no_formula_in_a_saved_table(page: Any, site: str) -> None:
    open_run(page, site)
    text = page.evaluate(
        """async () => (await import('/static/download.js'))
            .toCsv([{ a: '=HYPERLINK("x")', b: -1 }, { a: 'a,b\\n' }])"""
    )
    assert text == 'a,b\r\n"\'=HYPERLINK(""x"")",-1\r\n"a,b\n",\r\n'
