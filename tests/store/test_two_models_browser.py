"""A run of two models in a real browser: one model at a time in the charts, each call with its own."""

from typing import Any

import pytest

from lightningbus.schemas.fleet import Heartbeat
from lightningbus.schemas.training import TrainingStep
from tests.store.conftest import StoreProcess
from tests.store.test_two_models import CHECKER, RUN, STEPS, WRITER, events, store
from tests.store.test_ui_browser import browser, page, pages_of, picture

pytestmark = pytest.mark.e2e

__all__ = ["browser", "events", "page", "store"]


def alive() -> list[Heartbeat]:
    """Two learners, each with a node."""
    members = []
    for model, step in ((WRITER, STEPS), (CHECKER, STEPS // 2)):
        status = {"step": step, "steps": STEPS, "reward": 0.5}
        fields: dict[str, Any] = {"model": model, "version": step, "sent_at_ns": 0}
        members += [
            Heartbeat(role="learner", id=f"l-{model}", run_id=RUN, state="training", status=status, **fields),
            Heartbeat(role="inference", id=f"node-{model}", state="ready", status={"inflight": 2}, **fields),
        ]
    return members


def test_the_page_shows_a_chosen_model_and_says_which_model_answered(
    page: Any, store: StoreProcess, events: list[Any]
) -> None:
    use = next(
        use
        for use in next(
            event for event in events if isinstance(event, TrainingStep) and event.model == CHECKER
        ).rollouts
        if use.trained
    )
    with pages_of(store.url, members=alive) as site:
        page.goto(f"{site}/#/run/{RUN}")
        page.locator("#rollouts tbody tr").first.wait_for()
        choice = page.locator(".model-choice select")
        assert choice.locator("option").all_inner_texts() == [WRITER, CHECKER]
        page.locator("#chart-rewards canvas").wait_for()
        assert page.locator("#fleet thead").inner_text().split() == [
            "role",
            "name",
            "model",
            "state",
            "version",
            "doing",
        ]
        picture(page, "models-writer")
        choice.select_option(CHECKER)
        page.wait_for_url(f"**?model={CHECKER}")
        page.locator("#facts", has_text="version 2").wait_for()
        assert page.locator("#rollouts tbody tr").first.locator("td").nth(9).inner_text() == "2"
        picture(page, "models-checker")
        page.reload()
        page.locator("#facts", has_text="version 2").wait_for()
        assert choice.input_value() == CHECKER, "the address keeps the model"
        page.go_back()
        page.locator("#facts", has_text="version 5").wait_for()
        assert choice.input_value() == WRITER
        page.goto(f"{site}/#/run/{RUN}/rollout/{use.rollout_id}")
        page.locator("#calls .token").first.wait_for()
        headers = page.locator("#calls article header p").all_inner_texts()
        assert [name in text for name, text in zip((WRITER, CHECKER, WRITER), headers, strict=True)] == [True] * 3
        assert f"training of {CHECKER}" in page.locator(".facts").inner_text()
        assert f"advantage, {CHECKER}" in page.locator("#group thead").inner_text()
        picture(page, "models-rollout")
        page.goto(f"{site}/#/")
        row = page.locator("#runs tbody tr", has_text=RUN)
        row.wait_for()
        assert f"models {WRITER}, {CHECKER}" in row.inner_text() and f"{STEPS // 2} of {STEPS}" in row.inner_text()
        picture(page, "models-runs")
