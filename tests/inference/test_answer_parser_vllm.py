"""An agent that asks for no stream gets vLLM's own unstreamed answer, from a real engine through node and gateway."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from lightningbus.bus.client import Bus
from lightningbus.bus.security.secrets import bearer_header
from lightningbus.runners.gateway.server import Gateway
from lightningbus.runners.recording.attempt import AttemptRecorder
from lightningbus.schemas.spans import ModelCall
from lightningbus.schemas.trajectory.prefix_encoding import expand_calls
from tests.inference.test_node_models_vllm import ready
from tests.runners.conftest import task

pytestmark = pytest.mark.e2e

END = "<|im_end|>"
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n"
)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "parameters": {"type": "object", "properties": {"a": {"type": "integer", "enum": [7]}}, "required": ["a"]},
        },
    }
]
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
ANSWERS = {
    "a call": CALL,
    "text before a call": f"Let me see. {CALL}",
    "two calls": f"{CALL}\n{CALL.replace('1', '2')}",
    "arguments before the name": '<tool_call>\n{"arguments": {"a": 1, "b": 2}, "name": "add"}\n</tool_call>',
    "malformed JSON": '<tool_call>\n{"name": "add", "arguments": {"a": 1,}}}\n</tool_call>',
    "a call without arguments": '<tool_call>\n{"name": "add"}\n</tool_call>',
    "a call that is never closed": '<tool_call>\n{"name": "add", "arguments": {"a": 1}}',
    "text": "No call: 1 < 2 {} é 😀",
    "a thought and text": "<think>\nI add.\n</think>\n\nIt is 3.",
    "a thought and a call": f"<think>\nI add.\n</think>\n\n{CALL}",
    "a thought that does not end": "<think>\nI add and add",
}


RENDERING_CALLS = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content or '' }}"
    "{% for call in message.tool_calls or [] %}<tool_call>\n{{ call.function | tojson }}\n</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CLOSE_CALL = '<tool_call>\n{"name":"add","arguments":{"a":1}}\n</tool_call>'
"""A call that templates render in another way."""


def make_model(directory: Path, template: str = TEMPLATE) -> None:
    """A Qwen2 of chance whose tokens are bytes, and the marks of thoughts and calls."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={byte: id for id, byte in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([END, "<|im_start|>"])
    backend.add_tokens(["<think>", "</think>", "<tool_call>", "</tool_call>"])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=END, chat_template=template)
    tokenizer.save_pretrained(directory)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=1024, bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
        dtype="float32",
    )  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(directory)


def summary_of(answer: dict[str, Any]) -> list[Any]:
    """What an answer says; ids of calls are of chance."""
    choices = []
    for choice in answer["choices"]:
        message = {key: value for key, value in choice["message"].items() if value is not None}
        message["tool_calls"] = [{**call, "id": bool(call["id"])} for call in message.get("tool_calls") or ()]
        choices.append((message, choice["finish_reason"], choice["stop_reason"]))
    return choices


class Bed:
    """The engine behind its node, asked directly and through a runner's gateway."""

    def __init__(self, engine: str, gateway: Gateway, recorder: AttemptRecorder, http: aiohttp.ClientSession) -> None:
        self.engine, self.gateway, self.recorder, self.http = engine, gateway, recorder, http

    async def both(self, **body: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """What vLLM answers without a stream, and what the gateway does."""
        body = {
            "model": "policy", "messages": [{"role": "user", "content": "1 + 2?"}], "temperature": 0.0,
            "max_tokens": 200, **body,
        }  # fmt: skip
        (slot,) = self.gateway.slots
        answers = []
        for url, headers in (
            (f"{self.engine}/v1/chat/completions", {}),
            (f"{slot.base_url}/v1/chat/completions", bearer_header(slot.key)),
        ):
            async with self.http.post(url, json={**body, "return_token_ids": True}, headers=headers) as answer:
                assert answer.status == 200, await answer.text()
                answers.append(await answer.json())
        return answers[0], answers[1]

    def last_call(self) -> ModelCall:
        self.recorder.flush()
        call = self.recorder.outbox[-1].spans[-1].call
        assert call is not None
        return call


@asynccontextmanager
async def serving(bus: Bus, directory: Path, template: str = TEMPLATE, **settings: Any) -> AsyncIterator[Bed]:
    make_model(directory / "model", template)
    config = '{"enable_in_reasoning": true}'
    fields = {"frozen": True, "max_model_len": 1024, "vllm_args": ["--structured-outputs-config", config], **settings}

    async def send(recorder: AttemptRecorder, seconds: float) -> None:
        """Nothing is sent."""

    async with (
        ready(bus, directory, 1, **fields) as (beat,),
        bus.fleet("inference") as fleet,
        aiohttp.ClientSession() as http,
    ):
        while not fleet.members():
            await fleet.wait_for_change()
        async with Gateway(fleet, send, 1) as gateway:
            recorder = AttemptRecorder(task(), 1, "runner")
            gateway.slots[0].environment()
            gateway.slots[0].begin(recorder, task(), asyncio.get_running_loop().time() + sys.maxsize)
            yield Bed(beat.address, gateway, recorder, http)


async def test_an_unstreamed_answer_is_vllms_own(bus: Bus, tmp_path: Path) -> None:
    failed = {}
    async with serving(bus, tmp_path, tool_parser="hermes", reasoning_parser="qwen3") as bed:
        cases = {name: {"structured_outputs": {"choice": [text]}} for name, text in ANSWERS.items()}
        cases |= {
            f"{name}, cut after {length}": {"structured_outputs": {"choice": [ANSWERS[name]]}, "max_tokens": length}
            for name in ("text before a call", "a thought and a call")
            for length in range(2, 60, 7)
        }
        stop = {"structured_outputs": {"choice": ["one. two. three."]}, "stop": [". t"]}
        cases |= {"a stop string": stop, "a stop string that stays": {**stop, "include_stop_str_in_output": True}}
        cases = {name: {"tools": TOOLS, **case} for name, case in cases.items()}
        cases["required"] = {"tools": TOOLS, "tool_choice": "required"}
        cases["required, cut"] = {"tools": TOOLS, "tool_choice": "required", "max_tokens": 20}
        cases["named"] = {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "add"}}}
        cases["no tool"] = {"tools": TOOLS, "tool_choice": "none", "structured_outputs": {"choice": [CALL]}}
        cases["one call"] = {
            "tools": TOOLS,
            "parallel_tool_calls": False,
            "structured_outputs": {"choice": [ANSWERS["two calls"]]},
        }
        cases["two choices"] = {"tools": TOOLS, "n": 2, "temperature": 1.0, "structured_outputs": {"choice": [CALL]}}
        cases["thoughts without tools"] = {"structured_outputs": {"choice": [ANSWERS["a thought and text"]]}}
        for name, case in cases.items():
            expected, actual = await bed.both(**case)
            tokens, actual_tokens = (
                [choice["token_ids"] for choice in answer["choices"]] for answer in (expected, actual)
            )
            same = tokens == actual_tokens or "temperature" in case  # a mark is one token, or its characters
            if not same or summary_of(expected) != summary_of(actual):
                failed[name] = (same, summary_of(expected), summary_of(actual))
    assert not failed


async def test_a_chat_with_tools_goes_on_with_the_tokens_that_were_sampled(bus: Bus, tmp_path: Path) -> None:
    messages: list[Any] = [{"role": "user", "content": "1 + 2?"}]
    tool_calls = []
    async with serving(bus, tmp_path, RENDERING_CALLS, tool_parser="hermes") as bed:
        (slot,) = bed.gateway.slots
        async with openai.AsyncOpenAI(base_url=f"{slot.base_url}/v1", api_key=slot.key, max_retries=0) as client:
            for streamed in (False, True, False, True):
                body: dict[str, Any] = {"model": "policy", "messages": messages, "tools": TOOLS, "max_tokens": 150}
                body["extra_body"] = {"structured_outputs": {"choice": [CLOSE_CALL]}}
                if streamed:
                    async with client.chat.completions.stream(**body) as stream:
                        answer = (await stream.get_final_completion()).choices[0].message
                else:
                    answer = (await client.chat.completions.create(**body)).choices[0].message
                tool_calls += answer.tool_calls or []
                sent_back = answer.model_dump(exclude_none=True, exclude={"parsed"})
                for function in sent_back["tool_calls"]:
                    function["function"].pop("parsed_arguments", None)
                result = {"role": "tool", "tool_call_id": sent_back["tool_calls"][0]["id"], "content": "3"}
                messages = [*messages, sent_back, result]
    assert [call.function.name for call in tool_calls] == ["add"] * 4
    assert [json.loads(call.function.arguments) for call in tool_calls] == [{"a": 1}] * 4
    bed.recorder.flush()
    calls = expand_calls([span.call for batch in bed.recorder.outbox for span in batch.spans if span.call is not None])
    assert len(calls) == 4
    for before, after in pairwise(calls):
        assert after.prompt_ids.startswith(before.prompt_ids + before.response_ids)
