"""Reviews of rollouts: what is taken, what is refused, and the data sets made of them; on the page at two widths."""

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from msgspec.structs import replace

from lightningbus.bus.client import Bus
from lightningbus.cli.commands.results.ui import Listener
from lightningbus.schemas.reviews import RolloutReviewed
from lightningbus.store.clickhouse.client import connect
from lightningbus.store.ui.client import Reader
from lightningbus.store.ui.rollouts.reviews import parse_review, write_chats, write_tasks
from lightningbus.store.ui.server import UiServer, serve
from tests import seed_store
from tests.polling import until
from tests.store.conftest import Start, StoreProcess, prepared

RUN, ROLLOUT = "story", "sum.0"
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreProcess]:
    """A store with a run of one rollout."""
    with prepared(tmp_path_factory.mktemp("store")) as built:
        seed_store.insert(built.sql, seed_store.story(RUN))
        yield built


def execution_of(store: StoreProcess) -> str:
    """The attempt of the rollout."""
    return str(store.fetch_value(f"SELECT execution_id FROM rollouts WHERE run_id = '{RUN}'"))


def review_of(store: StoreProcess, **fields: Any) -> dict[str, Any]:
    """A review as the page sends it."""
    identity = {"run_id": RUN, "rollout_id": ROLLOUT, "execution_id": execution_of(store)}
    return {**identity, "reviewer": "Ada", "score": 1.0, "note": "", "dataset": "", **fields}


async def test_reviews_are_published_listed_and_exported(store: StoreProcess, tmp_path: Path) -> None:
    published: list[RolloutReviewed] = []

    async def publish(review: RolloutReviewed) -> str:
        published.append(review)
        await asyncio.to_thread(seed_store.insert, store.sql, [review])
        return ""

    reader = Reader(await asyncio.to_thread(connect, store.url))
    server = UiServer(reader, "127.0.0.1", lambda: "no bus", publish=publish)
    key = {"run_id": RUN, "rollout_id": ROLLOUT}
    async with serve(server, "127.0.0.1", 0) as url, aiohttp.ClientSession(url) as session:

        async def send(value: Any, **headers: str) -> tuple[int, Any]:
            async with session.post("/api/rollout/reviews", data=json.dumps(value), headers=JSON | headers) as answer:
                return answer.status, json.loads(await answer.text())

        for review in (review_of(store, score=0.5), review_of(store, note="good\n<b>", dataset="best of 2")):
            assert (await send(review))[0] == 200
        assert (await send(review_of(store, reviewer="Bo", score=None, note="hm")))[0] == 200
        async with session.get("/api/rollout/reviews", params=key) as answer:
            listed = json.loads(await answer.text())
        assert [(row["reviewer"], row["score"], row["note"], row["dataset"]) for row in listed["reviews"]] == [
            ("Bo", None, "hm", ""),
            ("Ada", 1.0, "good\n<b>", "best of 2"),
        ], "a later review replaces the one before"
        assert listed["datasets"] == [{"dataset": "best of 2", "rollouts": 1}]
        exported = {}
        for kind in ("tasks", "chats"):
            values = {"run_id": RUN, "dataset": "best of 2", "kind": kind}
            async with session.get("/api/run/dataset", params=values) as answer:
                exported[kind] = [json.loads(line) for line in (await answer.text()).splitlines()]
                assert answer.headers["Content-Disposition"] == f'attachment; filename="best-of-2-{kind}.jsonl"'
        (task,) = exported["tasks"]
        assert (task["id"], task["input"]["answer"], task["labels"]) == ("sum", "4", {"difficulty": "easy"})
        (chat,) = exported["chats"]
        assert [message["role"] for message in chat["messages"]] == ["system", "user", "assistant", "tool", "assistant"]
        refused = [
            ({"Origin": "http://evil.example"}, review_of(store), 403, "sent by this page alone"),
            ({"Content-Type": "text/plain"}, review_of(store), 403, "sent by this page alone"),
            ({}, review_of(store, score="high"), 400, "this is no review: "),
            ({}, review_of(store, score=None), 400, "a review has a score, a note or a data set"),
            ({}, review_of(store, note="x" * 4001), 400, "this is no review: "),
            ({}, [1], 400, "this is no review: "),
        ]
        for headers, value, status, sentence in refused:
            actual, body = await send(value, **headers)
            assert actual == status and sentence in body["error"] and "\n" not in body["error"]
    assert len(published) == 3 and all(abs(event.reviewed_at_ns - time.time_ns()) < 600e9 for event in published)


@pytest.mark.integration
async def test_a_review_goes_over_the_bus_into_the_view(bus: Bus, nats_url: str, start_store: Start) -> None:
    store, listener = await asyncio.to_thread(start_store, nats_url), Listener(nats_url)
    review = RolloutReviewed(run_id="r", rollout_id="t.0", execution_id="e", score=0.5, reviewed_at_ns=time.time_ns())
    assert await listener.publish(review) == "looking for the bus"
    listening = asyncio.create_task(listener.listen())
    await asyncio.to_thread(until, lambda: isinstance(listener.members(), str), False)
    for event in (review, replace(review, score=1.0, reviewed_at_ns=review.reviewed_at_ns + 1)):
        assert await listener.publish(event) == ""
    await asyncio.to_thread(store.until, "SELECT groupArray(score) FROM reviews WHERE rollout_id = 't.0'", [1.0])
    listening.cancel()


@pytest.mark.parametrize("problem", [None, "the bus does not answer"])
async def test_without_a_bus_a_review_is_refused_in_a_sentence(store: StoreProcess, problem: str | None) -> None:
    async def publish(review: RolloutReviewed) -> str:
        return problem or ""

    reader = Reader(await asyncio.to_thread(connect, store.url))
    server = UiServer(reader, "127.0.0.1", lambda: "no bus", publish=publish if problem else None)
    async with serve(server, "127.0.0.1", 0) as url, aiohttp.ClientSession(url) as session:
        answer = await session.post("/api/rollout/reviews", json=review_of(store))
        sentence = json.loads(await answer.text())["error"]
        assert answer.status == 409 and (problem or "no bus takes reviews here") in sentence


def test_a_review_with_a_score_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="score: a finite number"):
        parse_review(b'{"run_id": "r", "rollout_id": "x", "execution_id": "e", "score": 1e999}', 1)


def test_rows_that_are_no_chat_are_left_out_of_a_file_of_chats() -> None:
    row = {"rollout_id": "a", "call": 0, "request_prefix_refs": [], "request": '{"prompt": "x"}', "response": "{}"}
    assert list(write_chats([row])) == []
    assert list(write_tasks([{"id": "a", "input": "text", "labels": {}}])) == ['{"id": "a", "input": "text"}']


@pytest.mark.integration
async def test_a_store_written_before_there_were_reviews_has_none(tmp_path: Path) -> None:
    with prepared(tmp_path / "old") as store:
        await asyncio.to_thread(store.sql.command, "DROP VIEW reviews")
        server = UiServer(Reader(await asyncio.to_thread(connect, store.url)), "127.0.0.1", lambda: "no bus")
        async with serve(server, "127.0.0.1", 0) as url, aiohttp.ClientSession(url) as session:
            answer = await session.get("/api/rollout/reviews", params={"run_id": RUN, "rollout_id": ROLLOUT})
            assert json.loads(await answer.text()) == {"reviews": [], "datasets": []}
