"""The pages in a real browser, headless: what a reader sees, clicks and waits for.

``LIGHTNINGBUS_SCREENSHOTS=docs/ui`` keeps a picture of each page, light and dark.
"""

import io
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lightningbus.store.clickhouse import migrations
from lightningbus.store.ui.server import STORE_HEADER
from tests import seed_store
from tests.polling import HANG_SECONDS
from tests.store.browser import ROLLOUT, RUN, browser, expect, pages_of
from tests.store.conftest import StoreProcess, client
from tests.store.conftest import serving as serving_store

pytestmark = pytest.mark.e2e

__all__ = ["browser"]

SIZE = {"width": 1360, "height": 900}
TALLEST = 1500
PICTURES = os.environ.get("LIGHTNINGBUS_SCREENSHOTS")
LENGTHS = (8, 36, 400)
"""Training steps of the runs whose charts are measured."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreProcess]:
    """A store with a run of a dozen steps, a short one, and those whose charts are measured."""
    with serving_store(tmp_path_factory.mktemp("store")) as built:
        migrations.migrate(client(built.url, "default"), "lightningbus")
        migrations.create_views(built.sql, "lightningbus")
        seed_store.insert(built.sql, seed_store.run(RUN, steps=12, groups=3, seed=3))
        seed_store.insert(built.sql, seed_store.evaluations(RUN, (0, 6, 12)), first=50_000)
        seed_store.insert(built.sql, seed_store.run("before", steps=2, groups=2, seed=2), first=100_000)
        for number, steps in enumerate(LENGTHS):
            first, name = 1_000_000 * (1 + number), f"steps-{steps}"
            seed_store.insert(
                built.sql, seed_store.run(name, steps=steps, groups=1, samples=2, seed=steps), first=first
            )
            seed_store.insert(built.sql, seed_store.evaluations(name, (0, steps // 2, steps)), first=first + 500_000)
        yield built


@pytest.fixture(scope="module")
def site(store: StoreProcess) -> Iterator[str]:
    """The address of the pages."""
    with pages_of(store.url) as url:
        yield url


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page on which anything the console calls an error is one."""
    built = browser.new_page(viewport=SIZE)
    built.set_default_timeout(1000 * HANG_SECONDS)
    texts: list[str] = []
    built.on("console", lambda message: texts.append(message.text) if message.type in ("error", "warning") else None)
    built.on("pageerror", lambda error: texts.append(str(error)))
    yield built
    built.close()
    assert texts == []


def picture(page: Any, name: str) -> None:
    """Kept where somebody asked for pictures."""
    if PICTURES is None:
        return
    page.mouse.move(0, 0)
    page.evaluate("document.documentElement.style.scrollbarGutter = 'auto'")  # a picture has no scroll bar
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        whole = page.evaluate(
            "() => Math.ceil(document.querySelector('main').getBoundingClientRect().bottom + scrollY)"
        )
        page.set_viewport_size({"width": 1360, "height": min(whole, TALLEST)})
        page.wait_for_timeout(200)
        kept(page, f"{name}-{scheme}")
    page.emulate_media(color_scheme="light")
    page.set_viewport_size(SIZE)


def kept(page: Any, name: str) -> None:
    """A picture of what is seen, in 256 colours."""
    from PIL import Image

    assert PICTURES is not None
    screenshot = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    screenshot.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
        Path(PICTURES) / f"{name}.png", optimize=True
    )


def names(page: Any) -> list[str]:
    """Of the rollouts in the table, from the top."""
    texts: list[str] = page.locator("#rollouts tbody td.name").all_inner_texts()
    return texts


def colours(page: Any) -> list[str]:
    """Of the tokens, in their order."""
    actual: list[str] = page.locator(".token").evaluate_all("all => all.map(one => one.style.backgroundColor)")
    return actual


def test_from_the_runs_to_a_run_to_a_rollout_and_back(page: Any, site: str) -> None:
    page.goto(site)
    page.locator("#runs tbody tr").first.wait_for()
    assert page.locator("#runs tbody tr td.name").all_inner_texts() == [
        "steps-400",
        "steps-36",
        RUN,
        "steps-8",
        "before",
    ]
    page.locator("#runs tbody").get_by_role("link", name=RUN).click()
    page.locator("#rollouts tbody tr").first.wait_for()
    for chart in ("chart-rewards", "chart-staleness", "chart-drift", "chart-throughput", "chart-idle", "served"):
        page.locator(f"#{chart} canvas").wait_for()
    page.locator('[data-metric="learner/idle_share"] canvas').wait_for()
    assert page.locator("#fleet tbody tr").count() == 4
    assert "up to" in page.locator("#chart-trained dl").inner_text()
    assert "120 tokens recomputed" in page.locator("#audit").inner_text()
    assert "model calls" in page.locator("#chart-time").inner_text()
    picture(page, "run")
    page.locator("#rollouts tbody tr td.name a").first.click()
    page.locator("#calls .token").first.wait_for()
    assert page.url.endswith("rollout/" + page.locator("h1").inner_text().replace("@", "%40"))
    page.go_back()
    page.locator("#rollouts tbody tr").first.wait_for()
    assert page.locator("h1").inner_text() == RUN


def test_filters_narrow_the_table_and_are_part_of_the_address(page: Any, site: str) -> None:
    page.goto(f"{site}/#/run/{RUN}?sort=slowest")
    page.locator("#rollouts tbody tr").first.wait_for()
    every = names(page)
    page.locator("select[name=outcome]").select_option("agent_error")
    expect(page.locator("#rollouts .outcome:not(.agent_error)")).to_have_count(0)
    assert 0 < len(names(page)) < len(every)
    assert "outcome=agent_error" in page.url and "sort=slowest" in page.url
    page.go_back()
    expect(page.locator("#rollouts tbody tr")).to_have_count(len(every))
    assert names(page) == every
    page.locator("input[name=name]").fill("H1@")
    expect(page.locator("#rollouts tbody tr")).to_have_count(6)
    assert set(page.locator("#rollouts tbody .chip.eval").all_inner_texts()) == {"greedy", "sampled"}
    page.locator("select[name=mode]").select_option("eval")
    assert "mode=eval" in page.url
    assert set(names(page)) == {
        f"h1@{RUN}-{name}-v{version}.0" for name in ("greedy", "sampled") for version in (0, 6, 12)
    }
    page.locator("input[name=words]").fill("zebra")
    page.get_by_text("No rollout fits these filters").wait_for()
    page.get_by_role("button", name="Show all").click()
    expect(page.locator("#rollouts tbody tr")).to_have_count(len(every))
    page.get_by_role("button", name="Next").click()
    page.get_by_text("51–100 of").wait_for()


def test_a_row_says_what_was_asked_and_answered_or_why_it_failed(page: Any, site: str) -> None:
    page.goto(f"{site}/#/run/{RUN}")
    page.locator("#rollouts tbody tr").first.wait_for()
    if PICTURES:
        page.locator('[data-metric="actor/entropy"] canvas').wait_for()
        page.locator("#served canvas").wait_for()
        page.wait_for_timeout(500)  # panels above have their height
        page.evaluate("document.querySelector('#rollouts').scrollIntoView()")
        page.wait_for_timeout(500)
        kept(page, "list-light")
    page.locator("select[name=label]").select_option("difficulty: hard")
    expect(page.locator("#rollouts td.name", has_not_text="t0@p")).to_have_count(0)
    assert "label=difficulty%3A+hard" in page.url
    page.locator("select[name=part]").select_option("brief")
    page.locator("input[name=reward_to]").fill("0.15")
    expect(page.locator("#rollouts .pager span")).to_have_text(re.compile(r"^1–2\d of 2\d$"))
    parts = page.locator("#rollouts td.parts").all_inner_texts()
    assert all(float(text.split("brief ")[1]) <= 0.15 for text in parts), parts
    page.locator("input[name=tokens_from]").fill("31")
    page.get_by_text("No rollout fits these filters").wait_for()
    page.goto(f"{site}/#/run/{RUN}?outcome=agent_error&mode=train")
    row = page.locator("#rollouts tbody tr").first
    expect(row.locator(".gist .problem-line")).to_contain_text("ValueError: no number in answer")
    assert row.locator(".gist .asks").inner_text() in ("0", "1", "2"), "the input of its task"


def test_a_view_has_a_name_and_an_address(page: Any, site: str) -> None:
    page.goto(f"{site}/#/run/{RUN}?outcome=agent_error&sort=slowest")
    page.locator("#rollouts tbody tr").first.wait_for()
    failing = names(page)
    page.locator(".views summary").click()
    page.get_by_label("Name of this view").fill("slow failures")
    page.get_by_role("button", name="Save", exact=True).click()
    page.goto(f"{site}/#/run/{RUN}?mode=eval")
    expect(page.locator("#rollouts .chip.train")).to_have_count(0)
    link = page.get_by_role("link", name="slow failures")
    assert str(link.get_attribute("href")).endswith(f"#/run/{RUN}?outcome=agent_error&sort=slowest")
    link.click()
    expect(page.locator("#rollouts tbody tr")).to_have_count(len(failing))
    assert names(page) == failing and "mode=eval" not in page.url
    page.locator(".views summary").click()
    page.get_by_role("button", name="Forget slow failures").click()
    expect(page.get_by_role("link", name="slow failures")).to_have_count(0)


def test_a_rollout_leads_to_the_next_failing_and_changed_and_to_its_first_version(page: Any, site: str) -> None:
    page.goto(f"{site}/#/run/{RUN}/rollout/h1@{RUN}-greedy-v0.0")
    first = page.locator("#group tr.here td.number").first.inner_text()
    page.get_by_role("link", name="First version and now").click()
    page.locator(".sides .side").first.wait_for()
    assert page.locator("select[name=a]").input_value() == f"h1@{RUN}-greedy-v0.0"
    assert page.locator("select[name=b]").input_value() == f"h1@{RUN}-greedy-v12.0"
    page.go_back()
    page.get_by_role("link", name="Next changed").click()
    expect(page.locator("#group tr.here")).not_to_contain_text("v0.0")
    assert first in ("0.000", "1.000")
    page.goto(f"{site}/#/run/{RUN}/rollout/{ROLLOUT}")
    page.get_by_role("link", name="Next failing").click()
    expect(page.locator("h1")).not_to_have_text(ROLLOUT)
    page.locator("#group tr.here").wait_for()
    here = page.locator("#group tr.here").inner_text()
    assert "agent_error" in here or "0.000" in here


def test_a_rollout_shows_its_trace_and_its_tokens_in_three_colours(page: Any, site: str) -> None:
    page.goto(f"{site}/#/run/{RUN}/rollout/{ROLLOUT}")
    page.locator("#calls .token").first.wait_for()
    bars = page.locator(".waterfall .bar .what").all_inner_texts()
    assert [re.sub("[└ !]+", "", name) for name in bars][:2] == ["sendlb.task.train.default", "invoke_agentdefault"]
    assert sum("execute_tool" in name for name in bars) == 3 and any("train" in name for name in bars)
    kinds = page.locator(".waterfall .bar .kind").all_inner_texts()
    assert kinds[:4] == ["publish", "agent", "model", "tool"] and kinds[-1] == "train"
    page.locator('.bar[data-what="tool"]').first.click()
    text = page.locator(".span-detail").inner_text()
    assert "tool add" in text and "call 0" in text and "1+1" in text
    picture(page, "rollout")
    seen = {}
    for name in ("advantage", "staleness", "probability"):
        page.get_by_role("button", name=name, exact=True).click()
        seen[name] = colours(page)
        assert name in page.locator(".key").inner_text() or name == "staleness"
    assert len(set(seen["advantage"])) == 1 and len(set(seen["staleness"])) == 2 and len(set(seen["probability"])) > 5
    assert "color-mix" in seen["advantage"][0] and seen["advantage"] != seen["staleness"]
    page.locator(".token").nth(3).hover()
    answer = page.locator("#tip").inner_text()
    assert all(word in answer for word in ("id ", "probability", "version", "advantage", "behind"))
    if PICTURES:
        page.locator("#calls").scroll_into_view_if_needed()
        page.mouse.move(0, 0)
        kept(page, "tokens-light")
    page.reload()
    page.locator("#calls .token").first.wait_for()
    assert colours(page) == seen["probability"]
    page.get_by_text("whole request").first.click()
    page.get_by_text('"model": "policy:writer"').wait_for()
    page.goto(f"{site}/#/run/{RUN}/diff?a={ROLLOUT}&b=t1@p4.3")
    page.locator(".sides .side").first.wait_for()
    picture(page, "diff")


def test_an_instrumented_rollout_is_one_tree(page: Any, site: str, store: StoreProcess) -> None:
    seed_store.insert(store.sql, seed_store.instrumented("traced"), first=200_000)
    page.goto(f"{site}/#/run/traced/rollout/t.0")
    page.locator(".waterfall .bar").first.wait_for()
    rows = page.locator(".waterfall .bar").evaluate_all(
        """all => all.map(one => [one.querySelector(".kind").textContent, one.querySelector(".what").style.paddingLeft,
            one.querySelector(".what").textContent])"""
    )
    assert [(kind, int(indent[:-2]) // 14, name) for kind, indent, name in rows] == [
        ("agent", 0, "invoke_agent default"),
        ("agent", 1, "└ adder"),
        ("chain", 2, "└ model"),
        ("model", 3, "└ ChatOpenAI"),
        ("model", 4, "└ chat policy call 0"),
        ("reward", 5, "└ task 1.0, speed 0.5"),
        ("chain", 2, "└ tools"),
        ("tool", 3, "└ add !"),
        ("chain", 2, "└ model"),
        ("model", 3, "└ ChatOpenAI"),
        ("model", 4, "└ chat policy call 1"),
        ("message", 1, "└ b was zero"),
    ]
    page.locator(".bar", has_text="call 0").click()
    assert "it has the id of this answer" in page.locator(".span-detail").inner_text()
    page.locator('.bar[data-what="tool"]').click()
    expect(page.locator(".span-detail")).to_contain_text("of model call")
    assert page.locator(".span-detail pre").inner_text() == '{\n  "a": 2,\n  "b": 0\n}'
    picture(page, "tree")
    seed_store.insert(store.sql, seed_store.story("story"), first=300_000)
    page.goto(f"{site}/#/run/story/rollout/sum.0")
    page.locator("#chat .tool-call summary").click()
    page.locator(".review-form").wait_for()
    picture(page, "story")


def test_what_comes_in_while_a_page_is_open_appears(page: Any, site: str, store: StoreProcess) -> None:
    page.goto(f"{site}/#/run/before?name=t1%40p3")
    page.get_by_text("No rollout fits these filters").wait_for()
    (_, *events) = seed_store.run("before", steps=3, groups=2, seed=2)
    seed_store.insert(store.sql, events, first=100_000)
    page.locator("#rollouts tbody tr").first.wait_for()
    assert page.locator("#live").inner_text() == "finished"


def test_what_an_agent_said_is_never_code(page: Any, site: str, store: StoreProcess) -> None:
    bad = "<img src=x onerror=alert(1)>"
    store.sql.command(
        "INSERT INTO raw_attempts "
        "(run_id, task_id, rollout_id, execution_id, mode, outcome, error, started_at, ended_at) "
        f"VALUES ('{bad}', 't', '{bad}', 'e', 'train', '{bad}', '{bad}', now64(9), now64(9))"
    )
    page.goto(site)
    page.get_by_role("link", name=bad).click()
    page.locator("#rollouts").get_by_role("link", name=bad).click()
    page.get_by_text("made no model call").wait_for()
    assert page.locator("h1").inner_text() == bad and page.locator("main img").count() == 0


def test_what_goes_wrong_is_a_sentence_in_the_page(browser: Any, site: str) -> None:
    page = browser.new_page()
    page.goto(f"{site}/#/run/{RUN}/rollout/nobody")
    page.get_by_text("no rollout of run adding is called nobody").wait_for()
    page.goto(f"{site}/#/run/{RUN}?reward_from=much")
    page.get_by_text("reward_from: 'much' is not a number").wait_for()
    page.close()


GEOMETRY = (Path(__file__).parent / "chart_geometry.js").read_text()
"""What is wrong with the charts of the page that is open, as they say themselves where they draw."""


@pytest.mark.parametrize("width", [190, 390])
def test_charts_have_three_ticks_and_nothing_outside_the_plot_and_no_two_bars_overlap(
    page: Any, site: str, width: int
) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    for steps in LENGTHS:
        page.goto(f"{site}/#/run/steps-{steps}")
        expect(page.locator(".chart canvas")).to_have_count(12, timeout=1000 * HANG_SECONDS)
        page.locator("#chart-trained .bars").wait_for()
        geometry = page.evaluate(GEOMETRY)
        assert geometry["faults"] == [] and geometry["numBars"] > 25, f"{steps} steps"


def test_evaluations_are_marks_of_their_own_and_the_legend_switches_a_series(page: Any, site: str) -> None:
    page.goto(f"{site}/#/run/steps-36")
    chart = page.locator("#chart-rewards")
    chart.locator("canvas").wait_for()
    assert chart.locator(".toggle").all_inner_texts() == ["train", "greedy", "sampled"]
    lines = "root => root.plot.series.map(series => Boolean(series._paths?.stroke))"
    assert chart.locator(".chart").evaluate(lines) == [False, True, True, True, *[False] * 6], "training and its band"
    columns = "root => root.plot.data.slice(4).map(column => column.filter(value => value !== null).length)"
    assert chart.locator(".chart").evaluate(columns) == [3] * 6, "value and standard error of three versions each"
    left = chart.locator(".chart").evaluate("root => root.plot.valToPos(36, 'x')")
    chart.locator(".u-over").hover(position={"x": left, "y": 20})
    figures = page.locator("#tip").inner_text().split()
    assert figures[:6] == ["training", "step", "36", "weight", "version", "36"] and figures.count("±") == 2, (
        "of both evaluations"
    )
    chart.get_by_role("button", name="greedy").click()
    switched = "root => root.plot.series.map(series => series.show)"
    assert chart.locator(".chart").evaluate(switched) == [True] * 4 + [False] * 3 + [True] * 3


def test_any_metric_can_be_chosen_and_smoothed_and_the_address_keeps_it(page: Any, site: str) -> None:
    page.goto(f"{site}/#/run/{RUN}")
    page.locator("#metrics .metric canvas").nth(3).wait_for()
    page.locator("#metrics .picker > summary").click()
    assert page.locator("#metrics .options h3").all_inner_texts()[:2] == [
        "update of the policy",
        "staleness and waiting",
    ]
    page.get_by_label("Search metrics").fill("KL")
    assert page.locator("#metrics .options li").all_inner_texts() == ["drift of the update", "drift to the engine, k3"]
    page.get_by_label("stored names").check()
    assert page.locator("#metrics .options li").all_inner_texts() == ["actor/ppo_kl", "rollout_corr/k3_kl"]
    page.get_by_label("actor/ppo_kl").check()
    page.locator('[data-metric="actor/ppo_kl"] canvas').wait_for()
    page.locator("input[name=smooth]").fill("0.8")
    assert "smooth=0.8" in page.url and "actor%2Fppo_kl" in page.url
    page.reload()
    page.locator("#metrics .metric canvas").nth(4).wait_for()
    raw, smoothed = page.locator('[data-metric="actor/ppo_kl"] .chart').evaluate("root => root.plot.data.slice(1)")
    assert max(map(abs, smoothed)) < max(map(abs, raw)) / 2, "it goes up and down with every step"
    assert page.locator("#rollouts tbody tr").count() == 50, "the metrics are no filter of the rollouts"


def test_the_runs_can_be_searched_and_compared(page: Any, site: str) -> None:
    page.goto(site)
    row = page.locator("#runs tbody tr", has_text="steps-36")
    assert "finished" in row.inner_text() and "36 of 36" in row.inner_text() and "→" in row.inner_text()
    page.locator("input[name=search]").fill("finished STEPS-")
    expect(page.locator("#runs tbody tr")).to_have_count(3)
    assert "search=finished" in page.url
    for name in ("steps-36", "steps-8"):
        page.get_by_label(f"Compare {name}").check()
    page.get_by_role("link", name="Compare 2 runs").click()
    page.locator("#chart-rewards canvas").wait_for()
    assert page.url.endswith("#/compare?runs=steps-36,steps-8")
    legend = page.locator("#chart-rewards .toggle").all_inner_texts()
    assert legend == [f"{run} {name}" for run in ("steps-36", "steps-8") for name in ("train", "greedy", "sampled")]
    assert page.locator("#chart-rewards .chart").evaluate("root => root.plot.bands.length") == 2, "training has a band"
    parts = page.locator("#named-rewards [data-reward]")
    expect(parts.locator("canvas")).to_have_count(2)
    assert [part.get_attribute("data-reward") for part in parts.all()] == ["brief", "correct"]
    for part in parts.all():
        assert {" ".join(text.split()[:1]) for text in part.locator(".toggle").all_inner_texts()} == {
            "steps-36",
            "steps-8",
        }
    settings = page.locator("#settings tbody tr")
    expect(settings).to_have_count(2)
    assert [line.split() for line in settings.all_inner_texts()] == [["max_steps", "36", "8"], ["seed", "36", "8"]]
    page.locator("#metrics .metric canvas").nth(3).wait_for()
    assert page.evaluate(GEOMETRY)["faults"] == []
    picture(page, "compare")


def test_runs_have_their_labels_and_archived_ones_are_shown_on_demand(page: Any, site: str) -> None:
    response = page.request.get(f"{site}/api/runs")
    runs = response.json()
    assert all((run["tags"], run["note"], run["is_archived"]) == ([], "", False) for run in runs)
    labels = {
        "steps-36": {"tags": ["good", "new"], "note": "<b>the one</b>"},
        "steps-8": {"tags": ["good"], "is_archived": True},
    }
    known = {RUN, "before", *(f"steps-{steps}" for steps in LENGTHS)}
    labelled = [{**run, **labels.get(run["run_id"], {})} for run in runs if run["run_id"] in known]
    headers = {name: response.headers[name] for name in ("content-type", STORE_HEADER.lower())}
    page.route("**/api/runs*", lambda route: route.fulfill(json=labelled, headers=headers))
    page.goto(site)
    row = page.locator("#runs tbody tr", has_text="steps-36")
    expect(row.locator(".run-tag")).to_have_text(["good", "new"])
    expect(row.locator(".run-note")).to_have_text("<b>the one</b>")
    page.locator("input[name=search]").fill("good")
    expect(page.locator("#runs tbody tr")).to_have_count(1)
    page.get_by_label("archived runs too").check()
    expect(page.locator("#runs tbody tr")).to_have_count(2)
    assert "archived=1" in page.url
    page.reload()
    expect(page.locator("#runs tbody tr")).to_have_count(2)
    page.locator("input[name=search]").fill("")
    page.locator("#runs tbody tr", has_text="steps-400").wait_for()
    assert page.get_by_label("archived runs too").bounding_box()["width"] < 20
    page.locator("input[name=search]").blur()
    picture(page, "runs")
    page.locator("input[name=search]").fill("good")
    page.get_by_label("archived runs too").uncheck()
    expect(page.locator("#runs tbody tr")).to_have_count(1)
    page.locator("input[name=search]").fill("the one")
    expect(page.locator("#runs tbody tr")).to_have_count(1)


def test_noise_is_drawn_flat(page: Any, site: str) -> None:
    page.goto(site)
    low, high = page.evaluate(
        "async () => (await import('/static/axes.js')).rangeY(1e-9, 2e-9, { min: 0, span: 1e-5 })"
    )
    assert low == 0 and high >= 1e-5
    low, high = page.evaluate("async () => (await import('/static/axes.js')).rangeY(0.5, 0.5 + 1e-9)")
    assert low < 0.46 and high > 0.54
    width = page.evaluate(
        """async () => {
            const { bars } = await import('/static/bars.js');
            return bars([{ name: 'agent', values: [{ value: 1e-9 }] }], { span: 1e-3 }).querySelector('i').style.width;
        }"""
    )
    assert float(width.removesuffix("%")) < 0.01
