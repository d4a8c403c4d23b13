"""Agents for the runner's tests: stock client only."""

import functools
import json
import os
import time
import urllib.request

from openai import AsyncOpenAI, OpenAI

MESSAGES = [{"role": "user", "content": "hello"}]


def ask(client):
    return client.chat.completions.create(model="policy", messages=MESSAGES, temperature=0.9).choices[0].message.content


def asks(task):
    return float(ask(OpenAI(max_retries=0)) == "xx")


def asks_for_usage(task):
    """A stream that ends with its counts."""
    answer = OpenAI(max_retries=0).chat.completions.create(
        model="policy", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    *_, last = answer
    return float((last.usage.prompt_tokens, last.usage.completion_tokens) == (2, 2))


def asks_for_two(task):
    answer = OpenAI(max_retries=0).chat.completions.create(model="policy", messages=MESSAGES, n=2)
    return float([choice.message.content for choice in answer.choices] == ["xx", "xx"])


def chats(task, stream=False):
    client = OpenAI(max_retries=0)
    messages = list(MESSAGES)
    for _ in range(2):
        answer = client.chat.completions.create(model="policy", messages=messages, max_tokens=8, stream=stream)
        if stream:
            deltas = [chunk.choices[0].delta for chunk in answer if chunk.choices]
            fields = {"role": next(delta.role for delta in deltas if delta.role)}
            fields["content"] = "".join(delta.content or "" for delta in deltas)
        else:
            fields = answer.choices[0].message.model_dump()
        messages += [fields, {"role": "user", "content": "go on"}]
    return float([message["content"] for message in messages if message["role"] == "assistant"] == ["xx", "xx"])


def chats_streaming(task):
    return chats(task, stream=True)


@functools.cache
def kept():
    return OpenAI(max_retries=0)


def keeps_its_client(task):
    leaked = [name for name in os.environ if name.startswith("LIGHTNINGBUS")]
    assert not leaked, leaked
    return float(ask(kept()) == "xx")


async def asks_async(task):
    answer = await AsyncOpenAI(max_retries=0).chat.completions.create(model="policy", messages=MESSAGES)
    return answer.choices[0].message.content


def half(task, result):
    return 0.5 if (task, result) == ({"n": 1}, "xx") else 0.0


def asks_with_a_wrong_key(task):
    return float(ask(OpenAI(api_key="another", max_retries=0)) == "xx")


def answers(task):
    return 1.0


def works(task):
    """Work long enough that the slots of a runner are in use."""
    time.sleep(0.1)
    return 1.0


def dies_on_demand(task):
    if task.get("die"):
        os._exit(3)
    return 1.0


def sleeps(task):
    time.sleep(600)


def streamed(client, **more):
    chunks = list(
        client.chat.completions.create(
            model="policy",
            messages=MESSAGES,
            temperature=0.9,
            stream=True,
            stream_options={"include_usage": True},
            **more,
        )
    )
    usage = [chunk.usage for chunk in chunks if chunk.usage]
    assert {chunk.id for chunk in chunks if chunk.choices} == {"c"}, chunks
    assert {chunk.object for chunk in chunks if chunk.choices} <= {"chat.completion.chunk", None}, chunks
    assert (usage[0].prompt_tokens, usage[0].completion_tokens) == (2, 2), usage
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def streams(task):
    return float(streamed(OpenAI(max_retries=0)) == "xx")


def streams_with_tools(task):
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]
    return float(streamed(OpenAI(max_retries=0), tools=tools) == "xx")


def rewrites_its_reward(task):
    """A function of its own module is its reward, and no frame of it is out of its reach."""
    generous = (lambda task, result: 99.0).__code__
    half.__code__ = generous
    return "wrong"


def returns_an_object(task):
    return object()


def reward_that_raises(task, result):
    raise ValueError(f"cannot score {result!r}")


def reward_that_dies(task, result):
    os._exit(9)


def reward_sees(task, result):
    task["pid"] = result["pid"]
    return float(os.getpid() != result["pid"] and "OPENAI_API_KEY" not in os.environ and not task.get("rewritten"))


def rewrites_its_task(task):
    task["rewritten"] = True
    return {"pid": os.getpid()}


async def rewrites_its_reward_beside_others(task, endpoint):
    return rewrites_its_reward(task)


def asks_each(task):
    """One call to each model that the task names; or, in ``listed``, what the endpoint lists."""
    client = OpenAI(max_retries=0)
    for model in task["models"]:
        client.chat.completions.create(model=model, messages=MESSAGES)
    return {"reward": 1.0, "listed": [model.id for model in client.models.list()]}


def returns_its_task(task):
    return task


def rewards_by_name(task, result):
    return {"writer": 1, "checker": 0.25}


def post_event(body):
    """As curl would."""
    request = urllib.request.Request(
        f"{os.environ['OPENAI_BASE_URL']}/events",
        json.dumps(body).encode(),
        {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"},
    )
    with urllib.request.urlopen(request) as answer:
        return answer.status


def reports_events(task):
    client = OpenAI(max_retries=0)
    for events in task["events"]:
        ask(client)
        for event in events:
            assert post_event(event) == 200
    return task.get("reward")


def says_its_environment(task):
    ask(OpenAI(max_retries=0))
    return {"reward": 1.0, "seen": dict(os.environ)}


def prints_its_word(task):
    ask(OpenAI(max_retries=0))
    print(task["word"])
    return 1.0
