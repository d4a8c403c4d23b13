"""Which model answers the calls of a role, and rewards by name: a runner, a bus, a scripted engine for each model."""

import asyncio
from typing import Any

import pytest

from lightningbus.bus.client import Bus
from lightningbus.runners.gateway.engines.upstream import CallContext, Upstream
from lightningbus.runners.protocol.model_names import models_of, resolve_model
from lightningbus.runners.protocol.request import ChatRequest
from lightningbus.runners.protocol.token_history import TokenHistory
from lightningbus.runners.recording.attempt import AttemptRecorder
from lightningbus.schemas.semconv import attributes
from lightningbus.tasks.task_publisher import TaskPublisher
from tests.polling import HANG_SECONDS
from tests.runners.conftest import ScriptedEngine, calls_of, ended, running, task
from tests.runners.test_routing import node

ROLES = {"checker": "critic"}


@pytest.mark.parametrize(
    ("name", "model", "role"),
    [
        ("policy", "policy", ""),
        ("policy:writer", "policy", "writer"),
        ("policy:checker", "critic", "checker"),
        ("auto", "policy", ""),
        ("auto:writer", "policy", "writer"),
        ("auto:checker", "critic", "checker"),
        ("gpt-4o:checker", "critic", "checker"),
        ("critic", "critic", ""),
    ],
)
def test_a_call_is_answered_by_the_model_of_its_role(name: str, model: str, role: str) -> None:
    call = resolve_model(ChatRequest.parse({"model": name, "messages": []}, chat=True), task(role_models=ROLES))
    assert (call.model, call.role) == (model, role)
    assert call.to_engine_request({})["model"] == call.to_tokenize_request([], is_answered=False)["model"] == model
    assert models_of(task(role_models=ROLES)) == {"policy", "critic"}


def test_a_model_never_goes_on_from_the_tokens_of_another() -> None:
    messages = [{"role": "user", "content": "x"}]
    goes_on = [*messages, {"role": "assistant", "content": "y"}, {"role": "user", "content": "z"}]
    history = TokenHistory()

    def call(name: str, messages: list[Any]) -> ChatRequest:
        return resolve_model(
            ChatRequest.parse({"model": name, "messages": messages}, chat=True), task(role_models=ROLES)
        )

    history.add(call("policy:writer", messages), {"role": "assistant", "content": "y"}, [1, 2, 3], [1])
    assert history.longest_prefix(call("policy:checker", goes_on)) is None
    turn = history.longest_prefix(call("auto", goes_on))
    assert turn is not None and turn.tokens == [1, 2, 3]


def test_a_rollout_stays_with_a_node_of_each_model() -> None:
    recorder = AttemptRecorder(task(role_models=ROLES), 1, "runner")
    recorder.last_nodes |= {"policy": "busy", "critic": "other"}
    upstream = Upstream(None, None)  # type: ignore[arg-type]  # neither is asked
    nodes = [node("idle"), node("busy", inflight=9)]
    chosen = upstream._select(CallContext.create(recorder, "policy", task(), 0.0), nodes)
    assert chosen is not None and chosen.id == "busy"


async def test_each_role_is_answered_and_recorded_by_its_model(bus: Bus, engine: ScriptedEngine) -> None:
    names = ["policy:writer", "policy:checker", "auto:checker", "policy", "another:checker"]
    async with (
        ScriptedEngine().serving(bus, "critic", "critic-node") as critic,
        running(bus, entrypoint="plain:asks_each"),
    ):
        critic.version = 9
        await TaskPublisher(bus).publish_task(task(input={"models": names}, role_models=ROLES))
        (batch,) = await ended(bus)
    assert batch.end is not None and batch.end.outcome == "ok", batch.end
    calls = calls_of(batch)
    assert [(call.model, call.role) for call in calls] == [
        ("policy", "writer"), ("critic", "checker"), ("critic", "checker"), ("policy", ""), ("critic", "checker")
    ]  # fmt: skip
    assert {call.node for call in calls if call.model == "critic"} == {"critic-node"}
    assert {request["model"] for request in critic.requests} == {"critic"} and len(critic.requests) == 3
    assert {request["model"] for request in engine.requests} == {"policy"} and len(engine.requests) == 2
    assert (batch.end.usage.max_weight_version, batch.end.usage.newest_versions) == (3, {"critic": 9, "policy": 3})


async def test_versions_are_pinned_by_the_model_that_answers(bus: Bus, engine: ScriptedEngine) -> None:
    async with ScriptedEngine().serving(bus, "critic", "critic-node"), running(bus, entrypoint="plain:asks_each"):
        fields = {"role_models": ROLES, "weight_versions": {"critic": 99}, "deadline": 8.0, "max_attempts": 1}
        await TaskPublisher(bus).publish_task(task(input={"models": ["policy", "policy:checker"]}, **fields))
        (batch,) = await ended(bus)
    assert batch.end is not None and batch.end.outcome == "infra_error"
    assert "no inference node serves version 99 of 'critic'" in batch.end.error
    assert [call.model for call in calls_of(batch)] == ["policy"]


async def test_a_role_whose_model_nobody_serves_is_waited_for_and_named(bus: Bus, engine: ScriptedEngine) -> None:
    async with running(bus, entrypoint="plain:asks_each"):
        await TaskPublisher(bus).publish_task(
            task(input={"models": ["policy:checker"]}, role_models=ROLES, deadline=8.0, max_attempts=1)
        )
        (batch,) = await ended(bus)
    assert batch.end is not None and (batch.end.outcome, batch.end.error) == (
        "infra_error",
        "no inference node serves 'critic', which the task may call (served: policy) until the rollout's deadline",
    )


async def test_a_role_is_answered_once_a_node_serves_its_model(bus: Bus, engine: ScriptedEngine) -> None:
    async with running(bus, entrypoint="plain:asks_each", id="r"), bus.fleet("inference") as fleet:
        await TaskPublisher(bus).publish_task(task(input={"models": ["policy", "policy:checker"]}, role_models=ROLES))
        async with asyncio.timeout(HANG_SECONDS):
            while not engine.requests:
                await fleet.wait_for_change()
        async with ScriptedEngine().serving(bus, "critic", "critic-node"):
            (batch,) = await ended(bus)
    assert batch.end is not None and batch.end.outcome == "ok", batch.end
    assert '"listed": ["critic", "policy"]' in batch.end.result


async def test_an_unknown_model_is_an_error_at_once_and_what_may_be_called_is_listed(
    bus: Bus, engine: ScriptedEngine
) -> None:
    async with running(bus, entrypoint="plain:asks_each"):
        await TaskPublisher(bus).publish_task(task(input={"models": ["policx"]}, role_models=ROLES, deadline=600.0))
        await TaskPublisher(bus).publish_task(task(id="u", input={"models": []}, role_models=ROLES))
        wrong, right = sorted(await ended(bus, 2), key=lambda batch: batch.task_id)
    assert wrong.end is not None and wrong.end.outcome == "agent_error"
    assert "model 'policx' is not served; served: policy" in wrong.end.error
    assert right.end is not None and '"listed": ["critic", "policy"]' in right.end.result


async def test_rewards_by_name_are_part_of_an_attempts_end_and_of_its_root_span(
    bus: Bus, engine: ScriptedEngine
) -> None:
    returned = {"reward": 1.0, "rewards": {"checker": 0.5}}
    async with running(bus, entrypoint="plain:returns_its_task", agent_name="one"):
        for id, value in (("a", returned), ("b", {"reward": {"checker": "good"}})):
            await TaskPublisher(bus).publish_task(task(id=id, agent="one", input=value))
        first, second = sorted(await ended(bus, 2), key=lambda batch: batch.task_id)
    assert first.end is not None and (first.end.reward, first.end.rewards) == (1.0, {"checker": 0.5})
    fields = first.spans[-1].attributes
    assert (fields[attributes.REWARD], fields["lightningbus.rewards.checker"]) == (1.0, 0.5)
    assert second.end is not None and (second.end.outcome, second.end.error, second.end.rewards) == (
        "agent_error", "the reward 'checker' is a number, not 'good'", {}
    )  # fmt: skip
    async with running(bus, entrypoint="plain:answers", reward_fn="plain:rewards_by_name", agent_name="two"):
        await TaskPublisher(bus).publish_task(task(id="c", agent="two"))
        (batch,) = await ended(bus)
    assert batch.end is not None
    assert (batch.end.reward, batch.end.rewards) == (1.0, {"writer": 1.0, "checker": 0.25})
