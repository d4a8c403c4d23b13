"""Alert rules are said by one table, and an alert is published once when it begins and once when it is over."""

import asyncio

from nats.aio.msg import Msg

from lightningbus.alerts.publisher import AlertPublisher, Reason
from lightningbus.alerts.table import ALERT_RULES, describe
from lightningbus.bus.client import Bus
from lightningbus.schemas import subjects
from lightningbus.schemas.codec import decode
from lightningbus.schemas.fleet import Alert
from tests.polling import HANG_SECONDS


def test_a_sentence_has_its_values() -> None:
    sentence = describe("learner_passed_by", stream="TRAIN_ROLLOUTS", model="policy", num_messages=9)
    assert "the learner of 'policy' is behind and will not get 9 messages" in sentence
    assert len({rule.sentence for rule in ALERT_RULES.values()}) == len(ALERT_RULES)
    assert all(rule.condition.endswith(".") for rule in ALERT_RULES.values())


async def test_an_alert_that_an_earlier_process_left_is_over_when_it_holds_no_more(bus: Bus) -> None:
    """The next process says so once, and leaves alone what ended before and what another detector says."""
    gone, back, other = Reason("learner", "no step for 60 s"), Reason("runner", "no runner"), Reason("store", "is gone")
    earlier = AlertPublisher(bus, "test")
    await earlier.update({"learner:a": gone, "b": back})
    await earlier.update({"learner:a": gone})
    await AlertPublisher(bus, "testing").update({"c": other})
    for number in range(300):  # more than a page of the stream
        await earlier.update({"learner:a": gone, f"d{number}": back})
    await earlier.update({"learner:a": gone})
    unreadable = {"Nats-Msg-Id": "alert:test:f:1"}
    await bus.nc.jetstream().publish(subjects.ALERT, b"of another release", headers=unreadable)
    received: asyncio.Queue[Alert] = asyncio.Queue()

    async def receive(message: Msg) -> None:
        await received.put(decode(Alert, message.data))

    await bus.nc.subscribe(subjects.ALERT, cb=receive)
    publisher = AlertPublisher(bus, "test")
    await publisher.restore()
    for reasons in ({"learner:a": Reason("learner", "no step for 62 s")}, {}, {"e": back}):
        await publisher.update(reasons)
    async with asyncio.timeout(HANG_SECONDS):
        alerts = [await received.get() for _ in range(2)]
    assert [(alert.reason, alert.resolved) for alert in alerts] == [("no step for 60 s", True), ("no runner", False)]


async def test_an_alert_is_published_when_it_begins_and_when_it_is_over(bus: Bus) -> None:
    received: asyncio.Queue[Alert] = asyncio.Queue()

    async def receive(message: Msg) -> None:
        await received.put(decode(Alert, message.data))

    await bus.nc.subscribe(subjects.ALERT, cb=receive)
    publisher = AlertPublisher(bus, "test")
    learner, runner = Reason("learner", "no step for 60 s"), Reason("runner", "no runner")
    for reasons in ({"a": learner}, {"a": Reason("learner", "no step for 62 s"), "b": runner}, {"b": runner}, {}, {}):
        await publisher.update(reasons)
    async with asyncio.timeout(HANG_SECONDS):
        alerts = [await received.get() for _ in range(4)]
    assert [(alert.reason, alert.resolved) for alert in alerts] == [
        ("no step for 60 s", False),
        ("no runner", False),
        ("no step for 60 s", True),
        ("no runner", True),
    ]
