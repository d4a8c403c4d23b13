"""Which prompt version a call has: found in requests of each API, pinned by tasks, released on the bus."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightningbus.bus.client import Bus
from lightningbus.bus.prompts import PromptRegistry
from lightningbus.bus.streams.specs import STORE_EVAL
from lightningbus.runners.protocol.dialects.registry import APIS, GENERATE_CONTENT
from lightningbus.runners.protocol.prompts import PromptChoice, Substitution, substitute
from lightningbus.runners.protocol.request import ChatRequest
from lightningbus.runners.protocol.token_history import TokenHistory
from lightningbus.schemas.prompts import PromptCanary, PromptVersion, digest_of
from lightningbus.tasks.task_publisher import TaskPublisher
from tests.runners.conftest import ScriptedEngine, calls_of, ended, running, task
from tests.runners.external import opened

ORIGINAL, IMPROVED = "You answer questions about numbers.", "You answer questions about numbers. Round up."
PROMPT = PromptChoice("solver", 4, IMPROVED, ORIGINAL)
CHAT, ANTHROPIC, RESPONSES = "chat/completions", "messages", "responses"


def put(
    body: dict[str, Any], *prompts: PromptChoice, api: str = CHAT, history: TokenHistory | None = None
) -> Substitution:
    dialect = APIS[api].parse({"model": "policy", **body}, history or TokenHistory())
    return substitute(dialect.call, prompts or (PROMPT,))


def system_of(done: Substitution) -> Any:
    return done.call.body["messages"][0]["content"]


def chat(system: Any, model: str = "policy") -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "system", "content": system}, {"role": "user", "content": ORIGINAL}]}


@pytest.mark.parametrize(
    ("api", "body"),
    [
        (CHAT, chat(ORIGINAL)),
        (CHAT, chat([{"type": "text", "text": ORIGINAL}])),
        (CHAT, {"messages": [{"role": "developer", "content": ORIGINAL + "\n"}]}),
        (ANTHROPIC, {"system": ORIGINAL, "messages": [{"role": "user", "content": "2?"}], "max_tokens": 9}),
        (ANTHROPIC, {"system": [{"type": "text", "text": ORIGINAL}], "messages": [], "max_tokens": 9}),
        (RESPONSES, {"instructions": ORIGINAL, "input": "2?"}),
        (
            GENERATE_CONTENT,
            {"systemInstruction": {"parts": [{"text": ORIGINAL}]}, "contents": {"parts": {"text": "2?"}}},
        ),
        (RESPONSES, {"input": [{"role": "developer", "content": ORIGINAL}, {"role": "user", "content": "2?"}]}),
    ],
)
def test_the_original_text_gives_way_to_the_version_in_every_api(api: str, body: dict[str, Any]) -> None:
    done = put(body, api=api)
    content = system_of(done)
    assert (content if isinstance(content, str) else content[0]["text"]) == IMPROVED
    assert done.versions == {"solver": 4}


def test_only_system_messages_are_looked_at() -> None:
    done = put(chat(ORIGINAL))
    assert done.call.body["messages"][1]["content"] == ORIGINAL
    assert put({"messages": [{"role": "user", "content": ORIGINAL}]}).versions == {}


def test_the_original_text_is_found_as_a_part_unless_it_is_short() -> None:
    assert (
        system_of(put(chat(f"Today is Monday.\n{ORIGINAL}\nBe brief."))) == f"Today is Monday.\n{IMPROVED}\nBe brief."
    )
    short = PromptChoice("solver", 4, "Add up.", "Add.")
    assert put(chat("Add. Then stop."), short).versions == {}
    assert system_of(put(chat("Add."), short)) == "Add up."


def test_a_marked_part_gives_way_whatever_it_says() -> None:
    done = put(chat("Today.\n<!-- prompt:solver -->anything\n at all<!-- /prompt -->\nEnd."))
    assert (system_of(done), done.versions) == (f"Today.\n{IMPROVED}\nEnd.", {"solver": 4})
    other = chat("<!-- prompt:other -->as it is<!-- /prompt -->")
    assert (system_of(put(other)), put(other).versions) == (other["messages"][0]["content"], {})


def test_a_prompt_of_a_role_is_the_whole_system_message_of_that_role() -> None:
    prompt = PromptChoice("checker", 2, "Check twice.", "Check.", "checker")
    done = put(chat("You check things. The date is new each time.", "policy:checker"), prompt)
    assert (system_of(done), done.versions) == ("Check twice.", {"checker": 2})
    assert put(chat("Check.", "policy:solver"), prompt).versions == {}
    without = put({"model": "policy:checker", "messages": [{"role": "user", "content": "2?"}]}, prompt)
    assert [message["role"] for message in without.call.body["messages"]] == ["system", "user"]


def test_a_version_that_is_there_already_is_not_put_in_twice() -> None:
    for choice in (PROMPT, PromptChoice("solver", 4, ORIGINAL[:25], ORIGINAL)):
        done = put(chat(choice.text), choice)
        assert (system_of(done), done.versions) == (choice.text, {"solver": 4})


def test_a_response_that_goes_on_keeps_its_version() -> None:
    history = TokenHistory()
    first = APIS[RESPONSES].parse(
        {"model": "policy", "input": [{"role": "system", "content": ORIGINAL}, {"role": "user", "content": "2?"}]},
        history,
    )
    first.call = substitute(first.call, (PROMPT,)).call
    answer = first.answer(
        {
            "id": "chatcmpl-1",
            "choices": [{"message": {"role": "assistant", "content": "3"}, "finish_reason": "stop"}],
        }
    )
    done = put({"previous_response_id": answer["id"], "input": "4?"}, api=RESPONSES, history=history)
    assert (system_of(done), done.versions) == (IMPROVED, {"solver": 4})


def test_two_prompts_of_one_message_are_both_put_in() -> None:
    tools = PromptChoice("tools", 1, "Use the calculator at most once.", "Use the calculator as often as you like.")
    done = put(chat(f"{ORIGINAL}\n{tools.original}"), PROMPT, tools)
    assert (system_of(done), done.versions) == (f"{IMPROVED}\n{tools.text}", {"solver": 4, "tools": 1})


words = st.text("ab", min_size=1, max_size=3)


@st.composite
def texts_with_prompts(draw: st.DrawFn) -> tuple[str, str, list[PromptChoice], dict[str, int]]:
    """What an agent sends, what the model is to see, the prompts, and which of them are in it."""
    originals = draw(
        st.lists(words.map(lambda word: f"original of a prompt: {word}"), min_size=2, max_size=4, unique=True)
    )
    marks = [f"<!-- prompt:p{number} -->{{}}<!-- /prompt -->" for number in range(len(originals))]
    others = st.sampled_from([*originals, *(mark.format("x") for mark in marks)])
    texts = [draw(others) if draw(st.booleans()) else f"version: {draw(others)}" for _ in originals]
    prompts = [
        PromptChoice(f"p{at}", at + 1, text, sent) for at, (text, sent) in enumerate(zip(texts, originals, strict=True))
    ]
    sent, expected, versions = "", "", {}
    for at in draw(st.lists(st.integers(0, len(originals) - 1), min_size=1, max_size=6)):
        is_marked = draw(st.booleans())
        sent += "\n- " + (
            marks[at].format(draw(others.filter(lambda text: "<" not in text))) if is_marked else originals[at]
        )
        expected += "\n- " + texts[at]
        versions[f"p{at}"] = at + 1
    return sent + "\n- end", expected + "\n- end", draw(st.permutations(prompts)), versions


@given(texts_with_prompts())
@settings(max_examples=300, deadline=None)
def test_prompts_are_found_in_what_the_agent_sent_and_nowhere_else(
    case: tuple[str, str, list[PromptChoice], dict[str, int]],
) -> None:
    """Whatever their texts hold: other prompts' texts or marks, or the beginning of another."""
    sent, expected, prompts, versions = case
    done = put(chat(sent), *prompts)
    assert (system_of(done), done.versions) == (expected, versions)


def test_a_prompt_that_holds_the_text_of_another_stays_as_it_is() -> None:
    first = PromptChoice("first", 1, "Now read: the text of the second prompt.", "The text of the first prompt.")
    second = PromptChoice("second", 1, "<!-- prompt:first -->x<!-- /prompt -->", "the text of the second prompt.")
    for prompts in ((first, second), (second, first)):
        done = put(chat(f"{first.original} {second.original}"), *prompts)
        assert system_of(done) == f"{first.text} {second.text}"
    swapped = [
        PromptChoice(name, 1, text, sent)
        for name, text, sent in (
            ("a", "The text of the prompt B.", "The text of the prompt A."),
            ("b", "The text of the prompt A.", "The text of the prompt B."),
        )
    ]
    for pair in (swapped, swapped[::-1]):
        assert system_of(put(chat("The text of the prompt B.\nThe text of the prompt A."), *pair)) == (
            "The text of the prompt A.\nThe text of the prompt B."
        )


def test_of_two_prompts_that_begin_alike_the_longer_is_found() -> None:
    short = PromptChoice("short", 1, "Brief.", "You answer questions.")
    long = PromptChoice("long", 2, "At length.", "You answer questions. Use the calculator.")
    for prompts in ((short, long), (long, short)):
        done = put(chat(f"Today.\n{long.original}\n{short.original}"), *prompts)
        assert (system_of(done), done.versions) == ("Today.\nAt length.\nBrief.", {"short": 1, "long": 2})
        assert put(chat(long.original), *prompts).versions == {"long": 2}


def test_a_prompt_of_a_role_leaves_no_trace_of_what_its_message_held() -> None:
    role = PromptChoice("checker", 2, "Check twice.", "Check.", "checker")
    done = put(chat(ORIGINAL, "policy:checker"), PROMPT, role)
    assert (system_of(done), done.versions) == ("Check twice.", {"checker": 2})


def test_an_opening_mark_goes_with_the_next_closing_one() -> None:
    opening, closing = "<!-- prompt:solver -->", "<!-- /prompt -->"
    unknown = f"<!-- prompt:other --> {opening}x{closing}"
    assert system_of(put(chat(f"{unknown} {opening}y{closing} {opening}"))) == f"{unknown} {IMPROVED} {opening}"


def test_marks_inside_marks_go_with_the_outer_ones() -> None:
    opening, closing, other = "<!-- prompt:solver -->", "<!-- /prompt -->", "<!-- prompt:other -->"
    both_ways = f"{other}{opening}y{closing}{closing}{opening}{closing}"
    for inner in (f"{opening}y{closing}", f"{other}y{closing}", both_ways):
        text = f"a {opening}x{inner}z{closing} b {opening}{closing}"
        assert system_of(put(chat(text))) == f"a {IMPROVED} b {IMPROVED}"
    inside = f"a {other}x{opening}y{closing}z{closing} b"
    assert system_of(put(chat(inside))) == f"a {other}x{IMPROVED}z{closing} b", "an unknown prompt holds one"
    both = PromptChoice("other", 2, "The other one.", "Another.")
    assert system_of(put(chat(inside), PROMPT, both)) == "a The other one. b"


def test_what_is_no_message_is_left_alone() -> None:
    call = ChatRequest.parse({"model": "policy", "messages": [3, {"role": "system", "content": None}]}, chat=True)
    assert substitute(call, (PROMPT,)).call is call


PLAIN = "You are an agent that asks one thing."
"""What `prompted:asks` says."""


async def publish(bus: Bus, text: str, canary: bool = True, agent: str = "default") -> int:
    version = PromptVersion(
        name="solver",
        version=0,
        text=text,
        sha256=digest_of(text),
        agent=agent,
        canary=PromptCanary() if canary else None,
        created_at_ns=0,
    )
    return (await PromptRegistry(bus, "solver").publish(version)).version


async def versions_of_next(bus: Bus, engine: ScriptedEngine, **changes: Any) -> tuple[Any, Any]:
    await TaskPublisher(bus).publish_task(task(**changes))
    (batch,) = await ended(bus, consumer=STORE_EVAL)
    assert batch.end is not None and batch.end.outcome == "ok", batch.end
    return [call.prompt_versions for call in calls_of(batch)], engine.requests[-1]["messages"][0]["content"]


async def test_training_gets_the_released_version_and_a_task_the_one_it_is_pinned_to(
    bus: Bus, engine: ScriptedEngine
) -> None:
    async with running(bus, entrypoint="prompted:asks"):
        assert await versions_of_next(bus, engine, id="a") == ([{}], PLAIN)
        await publish(bus, PLAIN, canary=False)
        better = await publish(bus, f"{PLAIN} Be brief.")
        assert await versions_of_next(bus, engine, id="b") == ([{"solver": 0}], PLAIN)
        pinned = await versions_of_next(bus, engine, id="c", prompt_versions={"solver": better})
        assert pinned == ([{"solver": 1}], f"{PLAIN} Be brief.")
        registry = PromptRegistry(bus, "solver")
        await registry.append_decision("approved", better, actor="test")
        assert await versions_of_next(bus, engine, id="d") == pinned
        await registry.append_decision("revoked", better, actor="test")
        assert await versions_of_next(bus, engine, id="e") == ([{"solver": 0}], PLAIN)


async def test_an_agent_may_ask_for_a_prompt_by_name(bus: Bus, engine: ScriptedEngine) -> None:
    await publish(bus, "Say nothing but the number.", canary=False)
    async with running(bus, entrypoint="prompted:asks_for_it"):
        assert await versions_of_next(bus, engine) == ([{"solver": 0}], "Say nothing but the number.")


async def test_a_task_pinned_to_a_version_that_is_not_there_says_so(bus: Bus, engine: ScriptedEngine) -> None:
    await publish(bus, PLAIN, canary=False)
    async with running(bus, entrypoint="prompted:asks"):
        await TaskPublisher(bus).publish_task(task(max_attempts=1, prompt_versions={"solver": 9}))
        (batch,) = await ended(bus)
    assert batch.end is not None and batch.end.outcome == "infra_error"
    assert "pinned to version 9 of prompt 'solver', which is not on the bus (1 versions)" in batch.end.error
    assert engine.requests == []


async def test_an_external_endpoint_gets_the_version_too() -> None:
    async with opened() as office:
        rollout = office.slot.rollout
        assert rollout is not None
        office.slot.rollout = replace(rollout, prompts=(PROMPT,))
        messages: list[Any] = [{"role": "system", "content": ORIGINAL}, {"role": "user", "content": "2?"}]
        await office.openai.chat.completions.create(model="judge", messages=messages)
        (request,), (span,) = office.endpoint.requests, office.spans
    assert request["messages"][0]["content"] == IMPROVED
    assert span.call is not None and span.call.prompt_versions == {"solver": 4}


async def test_prompts_of_another_agent_are_not_used(bus: Bus, engine: ScriptedEngine) -> None:
    await publish(bus, PLAIN, canary=False, agent="other")
    async with running(bus, entrypoint="prompted:asks"):
        assert await versions_of_next(bus, engine) == ([{}], PLAIN)
