"""Agents in the shape of Agent Lightning 0.3; they run with its package and with `shape` alike."""

import functools
import os

import agentlightning as agl
from openai import AsyncOpenAI, OpenAI

MESSAGES = [{"role": "user", "content": "hello"}]


def ask(llm, **more):
    client = OpenAI(base_url=llm.endpoint, api_key=llm.api_key, max_retries=0)
    return client.chat.completions.create(model=llm.model, messages=MESSAGES, **more).choices[0].message.content


class Solver(agl.LitAgent):
    """Training and validation differ; the rollout and its attempt are told."""

    def __init__(self, bonus=0.0):
        super().__init__()
        self.bonus = bonus

    def training_rollout(self, task, resources, rollout):
        llm = resources["main_llm"]
        assert llm.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id) == os.environ["OPENAI_BASE_URL"]
        assert (rollout.mode, rollout.input, rollout.attempt.rollout_id) == ("train", task, rollout.rollout_id)
        assert ask(llm) == "xx" and self.tracer is not None
        return 0.25 + self.bonus

    def validation_rollout(self, task, resources, rollout):
        assert rollout.mode == "val"
        return float(ask(resources["main_llm"], **resources["main_llm"].sampling_parameters) == "xx")


generous = Solver(bonus=0.5)


class Asynchronous(agl.LitAgent):
    async def rollout_async(self, task, resources, rollout):
        llm = resources["main_llm"]
        client = AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key, max_retries=0)
        answer = await client.chat.completions.create(model=llm.model, messages=MESSAGES)
        return float(answer.choices[0].message.content == "xx")


class ReturnsSpans(agl.LitAgent):
    def rollout(self, task, resources, rollout):
        ask(resources["main_llm"])
        return [agl.emit_reward(0.1), agl.emit_reward(0.75)]


class Demanding(agl.LitAgent):
    def __init__(self, database):
        super().__init__()


class Nothing(agl.LitAgent):
    pass


@agl.rollout
def emits(task, llm):
    """Its last reward counts, and it is this rollout's."""
    ask(llm)
    for reward in task["rewards"]:
        agl.emit_reward(reward)


@agl.rollout
async def is_told_its_rollout(task, llm, rollout):
    ask(llm)
    return float(rollout.input == task)


def with_reward(function):
    @functools.wraps(function)
    def wrapper(task):
        return function(task, 0.5)

    return wrapper


@with_reward
def plain(task, reward):
    agl.emit_reward(reward)
