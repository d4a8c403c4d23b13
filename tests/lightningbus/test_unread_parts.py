"""A dry run names each part of a chat that a template leaves out; templates are rendered without vLLM here."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import jinja2
import pytest

from lightningbus.run.preflight.call_checks import find_unread
from lightningbus.run.preflight.chat_template import ChatTemplate
from lightningbus.run.preflight.scripted_engine import ModelCall
from lightningbus.runners.protocol.message_parts import join_parts


class TemplateEngine:
    """Renders chats as vLLM hands them to a template; a token is a character."""

    def __init__(self, template: str) -> None:
        self._template = jinja2.Environment().from_string(template)

    @asynccontextmanager
    async def forward(self, method: str, path: str, body: bytes, headers: Any) -> AsyncIterator[Any]:
        chat = json.loads(body)
        messages = list(map(_as_vllm, chat["messages"]))
        text = self._template.render({**chat, "messages": messages})
        answer = {"tokens": list(map(ord, text)), "token_strs": list(text)}

        async def read() -> bytes:
            return json.dumps(answer).encode()

        yield SimpleNamespace(status=200, read=read)


def _as_vllm(message: dict[str, Any]) -> dict[str, Any]:
    calls = [
        {**call, "function": {**call["function"], "arguments": json.loads(call["function"]["arguments"])}}
        for call in message.get("tool_calls") or ()
    ]
    content = message.get("content")
    text = join_parts(content) if isinstance(content, list) else content
    return {**message, "content": text, "reasoning_content": message.get("reasoning"), "tool_calls": calls}


async def unread_of(template: str, parameters: dict[str, Any], *, thinks: bool = False) -> list[str]:
    function = {"name": "add", "description": "adds", "parameters": {"type": "object", **parameters}}
    tools = [{"type": "function", "function": function}]
    call = ModelCall("", {"model": "policy", "messages": [{"role": "user", "content": "x"}], "tools": tools})
    engine: Any = TemplateEngine(template)
    sentences = [each async for each in find_unread(ChatTemplate(engine), [call], thinks=thinks)]
    return [each.removeprefix("the model does not read ").partition(": its chat")[0] for each in sentences]


MESSAGES = """
{%- for m in messages %}<{{ m.role }}>{{ m.reasoning_content or '' }}{{ m.content }}
{%- for c in m.tool_calls %}{{ c.function | tojson }}{% endfor %}{% endfor %}"""
WHOLE = "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}" + MESSAGES
TYPED = (
    """
{%- for t in tools or [] %}{{ t.function.name }}{{ t.function.description }}
{%- for name, p in (t.function.parameters.properties or {}).items() %}
{{ name }}: {% if p.type == 'object' %}object{% elif p.type is string %}{{ p.type }}{% else %}any{% endif %}
{%- if name not in (t.function.parameters.required or []) %}?{% endif %} // {{ p.description }}
{%- endfor %}{% endfor %}"""
    + MESSAGES
)
"""Writes properties of the first level as TypeScript does."""
NAMES = (
    "{% for t in tools or [] %}{{ t.function.name }}{{ t.function.description }}"
    "{% for name in t.function.parameters.properties or {} %}{{ name }}{% endfor %}{% endfor %}"
) + MESSAGES
NESTED: dict[str, Any] = {
    "$defs": {"City": {"properties": {"name": {"type": "string", "title": "Name"}}, "required": ["name"]}},
    "properties": {
        "city": {"$ref": "#/$defs/City", "description": "where"},
        "days": {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}], "default": None},
        "unit": {"type": "string", "pattern": "^[CF]$"},
        "level": {"type": "integer", "enum": [1, 2]},
    },
    "required": ["city"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("template", "lost"),
    [
        (WHOLE, []),
        (
            TYPED,
            [
                "'$defs' of the parameters of the tool 'add'",
                "the keyword '$ref' in the tool 'add'",
                "'anyOf' of 'days' in the parameters of the tool 'add'",
                "the keyword 'default' in the tool 'add'",
                "the keyword 'pattern' in the tool 'add'",
                "the values of 'level' in the parameters of the tool 'add'",
            ],
        ),
        (
            NAMES,
            [
                "'$defs' of the parameters of the tool 'add'",
                "the description of 'city' in the parameters of the tool 'add'",
                "the keyword '$ref' in the tool 'add'",
                "'anyOf' of 'days' in the parameters of the tool 'add'",
                "the keyword 'default' in the tool 'add'",
                "the keyword 'type' in the tool 'add'",
                "the keyword 'pattern' in the tool 'add'",
                "the values of 'level' in the parameters of the tool 'add'",
                "the keyword 'required' in the tool 'add'",
            ],
        ),
    ],
)
async def test_each_part_of_a_tools_schema_is_read_or_named(template: str, lost: list[str]) -> None:
    assert await unread_of(template, NESTED) == lost


async def test_a_tool_without_arguments_loses_nothing() -> None:
    for template in (WHOLE, TYPED, NAMES):
        for parameters in ({}, {"properties": {}}, {"properties": {}, "required": []}):
            assert await unread_of(template, parameters) == []


LAST = WHOLE.replace(
    "m.reasoning_content or ''", "(m.reasoning_content or '') if last.i == loop.index0 else ''"
).replace(
    "{%- for m in messages %}<",
    "{%- set last = namespace(i=-1) %}"
    "{% for m in messages %}{% if m.role == 'assistant' %}{% set last.i = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}<",
)
"""Renders the thought of the last answer alone."""


@pytest.mark.parametrize(
    ("template", "lost"),
    [
        (WHOLE, []),
        (
            LAST,
            [
                "the model's thoughts before a user's next message, once another turn follows",
                "the model's thoughts before a tool's result, once another turn follows",
            ],
        ),
        (
            WHOLE.replace("m.reasoning_content or ''", "''"),
            ["the model's thoughts before a user's next message", "the model's thoughts before a tool's result"],
        ),
    ],
)
async def test_thoughts_that_are_lost_now_or_a_turn_later_are_named(template: str, lost: list[str]) -> None:
    assert await unread_of(template, {}, thinks=True) == lost
