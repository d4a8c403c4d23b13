"""The page of a rollout, the comparison of two, what is said of a run, and access for everybody, in a real browser."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from lightningbus.schemas.reviews import RolloutReviewed
from lightningbus.schemas.spans import SpanBatch
from lightningbus.store.ui.client import StoreState
from tests import seed_store
from tests.polling import HANG_SECONDS
from tests.store.browser import ROLLOUT, RUN, browser, expect, pages_of
from tests.store.conftest import StoreProcess, prepared

pytestmark = pytest.mark.e2e

__all__ = ["browser"]
AXE = Path(__file__).parent / "axe" / "axe.min.js"
DESKTOP, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}
ROLLOUT_PATH = f"run/{RUN}/rollout/{ROLLOUT}"
PAGES = {
    "runs": ("", "#runs tbody tr"),
    "run": (f"run/{RUN}", "#rollouts tbody tr"),
    "compare": (f"compare?runs={RUN},nowhere", "#settings tbody tr"),
    "rollout": (ROLLOUT_PATH, "#group tbody tr"),
    "story": ("run/story/rollout/sum.0", "#chat .tool-call"),
    "diff": (f"run/{RUN}/diff?a={ROLLOUT}&b=t1@p4.3", ".sides .side"),
    "missing-run": ("run/nowhere", ".missing"),
}
"""Path and what is there when the page is."""
PICTURES = os.environ.get("LIGHTNINGBUS_UI_PICTURES")
"""A directory for pictures of every page, wide and narrow, light and dark."""


def evaluations() -> Iterator[SpanBatch]:
    """A greedy and a sampled evaluation of the run."""
    for seed, evaluation in enumerate(("greedy", "sampled")):
        for event in seed_store.run(RUN, steps=2, groups=2, samples=2, seed=seed):
            if isinstance(event, SpanBatch):
                identity = {name: f"{evaluation}-{getattr(event, name)}" for name in ("task_id", "rollout_id")}
                yield replace(event, mode="eval", evaluation=evaluation, **identity)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreProcess]:
    """A store with a run of four steps and two evaluations."""
    with prepared(tmp_path_factory.mktemp("store")) as built:
        seed_store.insert(built.sql, seed_store.run(RUN, steps=4, groups=3, seed=3))
        seed_store.insert(built.sql, evaluations(), first=50_000)
        seed_store.insert(built.sql, seed_store.story("story"), first=90_000)
        yield built


@pytest.fixture(scope="module")
def site(store: StoreProcess) -> Iterator[str]:
    """The address of the pages."""
    with pages_of(store.url) as url:
        yield url


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page; the theme it chooses ends with it."""
    context = browser.new_context(viewport=DESKTOP, reduced_motion="reduce")
    built = context.new_page()
    built.set_default_timeout(1000 * HANG_SECONDS)
    errors: list[str] = []
    built.on("pageerror", lambda error: errors.append(str(error)))
    yield built
    context.close()
    assert errors == []


def visit(page: Any, site: str, name: str) -> None:
    """Open a page and wait until it is filled."""
    path, filled = PAGES[name]
    page.goto(f"{site}/#/{path}")
    page.locator(filled).first.wait_for()


def violations(page: Any) -> list[str]:
    """What axe-core finds: the rule, the element and why."""
    rules = page.evaluate("async () => (await axe.run(document, {resultTypes: ['violations']})).violations")
    return [f"{item['id']}: {node['target']} {node['failureSummary']}" for item in rules for node in item["nodes"]]


@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_no_violation_in_either_theme(page: Any, site: str, name: str) -> None:
    visit(page, site, name)
    page.evaluate(AXE.read_text())  # the policy of the page lets no script in
    page.evaluate("for (const menu of document.querySelectorAll('.picker, .views, .download, .fold')) menu.open = true")
    problems: list[str] = []
    for size in (DESKTOP, PHONE):
        page.set_viewport_size(size)
        for theme in ("light", "dark"):
            page.locator("#theme").select_option(theme)
            if PICTURES:
                page.screenshot(path=f"{PICTURES}/{name}-{theme}-{size['width']}.png", full_page=True)
            problems += [f"{theme}, {size['width']} px: {text}" for text in violations(page)]
    assert not problems, "\n".join(problems)


def test_the_theme_is_kept(page: Any, site: str) -> None:
    visit(page, site, "runs")
    background = "getComputedStyle(document.body).backgroundColor"
    page.emulate_media(color_scheme="dark")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    dark = page.evaluate(background)
    page.locator("#theme").select_option("light")
    light = page.evaluate(background)
    assert light != dark
    page.reload()
    page.locator("#runs tbody tr").first.wait_for()
    assert page.evaluate(background) == light
    page.locator("#theme").select_option("system")
    assert page.evaluate(background) == dark


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["1440px", "390px"])
def test_a_rollout_tells_its_story_once(page: Any, site: str, size: dict[str, int]) -> None:
    page.set_viewport_size(size)
    visit(page, site, "story")
    task = page.locator("#task").inner_text()
    assert all(part in task for part in ("What is 2+2?", "expected answer\n4", "difficulty: easy", '"grade": 1'))
    turns = [text.splitlines()[0] for text in page.locator("#chat .turn").all_inner_texts()]
    roles = ["system", "user", "assistant", "tool", "assistant"]
    assert all(turn.startswith(role) for turn, role in zip(turns, roles, strict=True)), turns
    tool = page.locator("#chat .tool-call")
    assert tool.count() == 1 and tool.locator("pre").first.is_hidden()
    tool.locator("summary").click()
    assert tool.locator("pre").all_inner_texts() == ['{\n  "a": 2,\n  "b": 2\n}', '{\n  "sum": 4\n}']
    thoughts = page.locator("#chat .by-assistant .fold")
    assert thoughts.count() == 2 and thoughts.nth(1).locator(".text").is_hidden()
    assert page.locator("#chat .by-assistant .text:visible").all_inner_texts() == ["The sum is **4**."]
    result = page.locator("#result")
    for words in ('"words": 4', "Right, and short. Score: 1", "40 + 6 tokens · cost 0.002", "sum.txt, 6 bytes"):
        expect(result).to_contain_text(words)
    result.locator("summary", has_text="lines").click()
    expect(result.get_by_text("adding 2 and 2")).to_be_visible()
    expect(page.locator("#attempts")).to_be_hidden()
    assert page.locator("main").inner_text().count("What is 2+2?") == 2, "the task, and the chat"
    page.get_by_role("button", name="tokens of call 1").click()
    expect(page.locator("#call-1 .token").first).to_be_in_viewport()
    order = page.locator("main > .panel:visible > header > h2").all_inner_texts()
    assert order == ["Task", "Conversation", "What came of it", "Reviews", "Group", "Trace", "Model calls and tokens"]
    assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["1440px", "390px"])
def test_a_person_reviews_a_rollout_and_adds_it_to_a_data_set(
    page: Any, store: StoreProcess, size: dict[str, int]
) -> None:
    async def publish(review: RolloutReviewed) -> str:
        await asyncio.to_thread(seed_store.insert, store.sql, [review])
        return ""

    page.set_viewport_size(size)
    with pages_of(store.url, publish=publish) as site:
        visit(page, site, "story")
        form = page.locator(".review-form")
        form.get_by_label("score").fill("0.5")
        form.get_by_label("note").fill(f"fine at {size['width']} <b>px</b>")
        form.get_by_label("add to a data set").fill("good ones")
        form.get_by_label("reviewer").fill(f"Ada {size['width']}")
        form.get_by_role("button", name="Save review").click()
        review = page.locator(".reviews li", has_text=f"Ada {size['width']}")
        expect(review).to_contain_text(f"fine at {size['width']} <b>px</b>")
        expect(review).to_contain_text("score 0.5")
        expect(review).to_contain_text("in good ones")
        with page.expect_download() as started:
            page.get_by_role("link", name="chats").first.click()
        assert started.value.suggested_filename == "good-ones-chats.jsonl"
        page.reload()
        expect(form.get_by_label("reviewer")).to_have_value(f"Ada {size['width']}")
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]


def test_a_review_that_no_bus_takes_is_a_sentence_and_stays_in_the_form(page: Any, site: str) -> None:
    visit(page, site, "story")
    page.locator(".review-form").get_by_label("note").fill("to be kept")
    page.get_by_role("button", name="Save review").click()
    page.get_by_text("a review is an event on the run's bus, and none takes it").wait_for()
    expect(page.locator(".review-form").get_by_label("note")).to_have_value("to be kept")


def test_the_fleet_is_in_words(page: Any, site: str) -> None:
    visit(page, site, "run")
    row = page.locator("#fleet tr", has_text="node-0")
    expect(row.locator(".doing")).to_have_text("calls in flight 7, broadcast by gloo and nccl")


def test_a_rollout_shows_its_group_its_neighbours_and_its_step(page: Any, site: str) -> None:
    visit(page, site, "rollout")
    assert page.locator("#group tbody tr").count() == 4
    assert page.locator("#group tr.here").inner_text().startswith(ROLLOUT)
    page.get_by_role("link", name="Next →").click()
    expect(page.locator("h1")).not_to_have_text(ROLLOUT)
    page.get_by_role("link", name="← Previous").click()
    expect(page.locator("h1")).to_have_text(ROLLOUT)
    page.get_by_role("link", name="step 4").click()
    page.locator("#rollouts tbody tr").first.wait_for()
    assert "step=4" in page.url and page.locator("input[name=step]").input_value() == "4"
    trained = page.locator("#rollouts tbody td.name").all_inner_texts()
    assert ROLLOUT in trained and all("@p4." in name for name in trained)


def test_two_rollouts_are_compared_by_message(page: Any, site: str) -> None:
    visit(page, site, "rollout")
    page.locator("#group tr", has_text="t1@p4.3").get_by_role("link", name="compare").click()
    page.locator(".sides .side").first.wait_for()
    left, right = (page.locator(".sides .side").nth(index).inner_text() for index in (0, 1))
    assert left == right and "You add numbers." in left
    assert page.locator(".sides .side.differs mark").count() > 0
    page.locator("select[name=b]").select_option("t1@p4.0")
    expect(page.get_by_role("combobox", name="right")).to_have_value("t1@p4.0")
    assert "b=t1%40p4.0" in page.url
    page.go_back()
    expect(page.locator("select[name=b]")).to_have_value("t1@p4.3")


def test_the_list_is_filtered_by_evaluation_role_and_tool(page: Any, site: str) -> None:
    visit(page, site, "run")
    for name, value in (("evaluation", "greedy"), ("role", "checker"), ("tool", "add")):
        page.locator(f"select[name={name}]").select_option(value)
    expect(page.locator("#rollouts .chip:not(:text-is('greedy'))")).to_have_count(0)
    assert all(part in page.url for part in ("evaluation=greedy", "role=checker", "tool=add"))
    assert page.locator("#rollouts tbody tr").count() > 0
    page.reload()
    page.locator("#rollouts tbody tr").first.wait_for()
    assert page.locator("select[name=tool]").input_value() == "add"


def test_tokens_are_reached_by_keyboard(page: Any, site: str) -> None:
    visit(page, site, "rollout")
    page.locator(".token").first.focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.dataset.place") == "1"
    assert "probability" in page.locator("#tip").inner_text()
    page.keyboard.press("End")
    assert page.evaluate("document.activeElement.nextSibling") is None
    assert page.locator(".tokens").first.locator('[tabindex="0"]').count() == 1


def test_labels_of_the_trace_are_whole_on_a_phone(page: Any, site: str) -> None:
    page.set_viewport_size(PHONE)
    visit(page, site, "rollout")
    page.locator(".bar .length").first.wait_for()
    cut = page.locator(".bar").evaluate_all(
        """bars => bars.map(bar => [bar.querySelector(".length"), bar.getBoundingClientRect()])
            .filter(([label, bar]) => label.scrollWidth > label.clientWidth
                || label.getBoundingClientRect().right > bar.right + 1)
            .map(([label]) => label.textContent)"""
    )
    assert cut == []
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_a_run_or_a_rollout_that_does_not_exist_is_said_not_to_exist(page: Any, site: str) -> None:
    visit(page, site, "missing-run")
    assert "There is no run nowhere here" in page.locator(".missing").inner_text()
    assert page.locator(".panel").count() == 1, "no empty panels"
    page.goto(f"{site}/#/run/{RUN}/rollout/nobody")
    page.get_by_role("heading", name="There is no rollout nobody here").wait_for()
    assert page.locator(".panel").count() == 1
    expect(page.locator("#live")).not_to_have_class("live bad")


READ_BROKEN_ANSWER = """async (isLeft) => {
    const { ask } = await import("/static/api.js");
    const leave = new AbortController(), whole = window.fetch;
    window.fetch = async (...request) => {
        const answer = await whole(...request);
        if (!isLeft) return new Response("{");
        leave.abort();
        return answer;
    };
    const question = ask("runs", {}, leave.signal);
    const outcome = await question.then(() => "an answer", (error) => `${error.name}: ${error.message}`);
    window.fetch = whole;
    return outcome;
}"""


def test_an_answer_that_breaks_off_is_an_error_and_no_answer(page: Any, site: str) -> None:
    visit(page, site, "runs")
    assert page.evaluate(READ_BROKEN_ANSWER, True).startswith("AbortError: ")
    assert page.evaluate(READ_BROKEN_ANSWER, False) == "Error: The answer of lightningbus ui is cut off or not JSON."


def test_a_store_that_is_gone_is_a_banner_and_a_finished_run_is_marked(
    browser: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    from lightningbus.store.clickhouse.client import connect
    from lightningbus.store.ui.client import Reader

    page = browser.new_page()
    with prepared(tmp_path_factory.mktemp("short")) as store:
        seed_store.insert(store.sql, seed_store.run("short", steps=1, groups=1, seed=3))
        reader = Reader(connect(store.url), patience=0)
        with pages_of(store.url, reader) as site:
            page.goto(f"{site}/#/run/short")
            page.locator("#rollouts tbody tr").first.wait_for()
            expect(page.locator("#live")).to_have_text("finished")
            reader.use(connect(store.url), StoreState.FINISHED)
            expect(page.locator("#live")).to_have_text("finished")
            reader.lose("The store is gone: start it again.")
            expect(page.locator("#banner")).to_have_text("The store is gone: start it again.")
            expect(page.locator("#live")).to_have_text("not live")
            assert page.locator("#rollouts tbody tr").count() > 0, "what was there stays"
            page.reload()
            expect(page.locator("#banner")).to_have_text("The store is gone: start it again.")
            page.locator("#fleet tbody tr").first.wait_for()  # the bus is there
            expect(page.locator(".panel:visible:not(#fleet)")).to_have_count(0)
            reader.use(connect(store.url), StoreState.LIVE)
            page.locator("#rollouts tbody tr").first.wait_for()
            expect(page.locator("#banner")).to_be_hidden()
    page.close()
