"""Chat templates in the styles of models that people train, and an engine that renders chats by one of them."""

from typing import Any

import jinja2
from aiohttp import web
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tests.runners.conftest import ScriptedEngine

STRICT = """
{%- for m in messages %}{% if m.role == 'system' and not loop.first %}
{{- raise_exception('System message must be first') }}{% endif %}<|im_start|>{{ m.role }}
{{ m.content or '' }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.arguments | tojson }}</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""Qwen3.5: a system message is the first one."""
ANYWHERE = STRICT.replace("m.role == 'system' and not loop.first", "false")
"""Qwen3, Llama 3: a system message is rendered where it stands."""
DROPPING = """
{%- for m in messages %}{% if m.role == 'system' %}{% if loop.first %}<<{{ m.content }}>>{% endif %}
{%- else %}[{{ m.role }}]{{ m.content }}{% endif %}{% endfor %}"""
"""Templates that leave out a later system message without a word."""
ALTERNATING = """
{%- set turns = messages[1:] if messages[0].role == 'system' else messages %}
{%- if messages[0].role == 'system' %}{{ messages[0].content }}
{% endif %}{% for m in turns %}{% if m.role == 'system' %}{{ raise_exception('no such role') }}{% endif %}
{%- if m.role == 'user' and loop.index0 > 0 and turns[loop.index0 - 1].role == 'user' %}
{{- raise_exception('roles must alternate') }}{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}"""
"""Mistral: roles alternate."""
NO_SYSTEM = ALTERNATING.replace("messages[1:] if messages[0].role == 'system' else messages", "messages")
"""Gemma-2: there is no system role, and roles alternate."""
CONTENTS = """
{%- for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}"""
"""SmolLM2: contents alone, of any role."""
THREE_ROLES = """
{%- for m in messages %}{% if m.role in ('system', 'user', 'assistant') %}<|{{ m.role }}|>{{ m.content }}</s>
{%- endif %}{% endfor %}"""
"""Zephyr: other roles are left out without a word."""
HERMES = """
{%- if tools %}<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}{% else %}You are a helpful assistant.{% endif %}

# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>{% for tool in tools %}
{{ tool | tojson }}{% endfor %}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call><|im_end|>
{% elif messages[0].role == 'system' %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif %}
{%- for m in messages %}
{%- if m.role == 'user' or m.role == 'system' and not loop.first %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% elif m.role == 'assistant' %}<|im_start|>assistant
{% if m.reasoning_content %}<think>
{{ m.reasoning_content }}
</think>

{% endif %}{{ m.content or '' }}{% for c in m.tool_calls or [] %}{% if not loop.first or m.content %}
{% endif %}<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% elif m.role == 'tool' %}{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}
<tool_response>
{{ m.content }}
</tool_response>{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>
{% endif %}{% endif %}{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""Qwen2.5 and Hermes, with thoughts: definitions of tools are rendered before all turns."""
TEMPLATES = {
    "strict": STRICT,
    "anywhere": ANYWHERE,
    "dropping": DROPPING,
    "alternating": ALTERNATING,
    "no system": NO_SYSTEM,
    "contents": CONTENTS,
    "three roles": THREE_ROLES,
}


def render(template: str, messages: list[Any]) -> list[int]:
    """Render a chat to tokens, a byte each; raises `jinja2.TemplateError` where the template refuses it."""
    return list(render_text(template, messages).encode())


def render_text(template: str, messages: list[Any], begins_answer: bool = False) -> str:
    """Render a chat, with the start of an answer if wanted; raises as `render`."""

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment = ImmutableSandboxedEnvironment()
    environment.globals["raise_exception"] = refuse
    return environment.from_string(template).render(messages=messages, add_generation_prompt=begins_answer)


class RenderingEngine(ScriptedEngine):
    """A scripted engine with a template; it refuses what the template, or a model of text, refuses."""

    def __init__(self, template: str, max_model_len: int | None = None) -> None:
        super().__init__()
        self.template, self.max_model_len = template, max_model_len
        self.num_rendered = 0

    def status(self) -> dict[str, Any]:
        return {} if self.max_model_len is None else {"max_model_len": self.max_model_len}

    async def tokenize(self, request: web.Request) -> web.Response:
        self.num_rendered += 1
        messages = (await request.json())["messages"]
        if any(isinstance(message.get("content"), list) for message in messages):
            return web.json_response({"error": {"message": "it is not a multimodal model"}}, status=400)
        try:
            return web.json_response({"tokens": render(self.template, messages)})
        except jinja2.TemplateError as error:
            return web.json_response({"error": {"message": str(error)}}, status=400)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Refuse, as vLLM does, a chat that its template refuses, or for which the context is too short."""
        body = await request.json()
        try:
            num_tokens = len(render(self.template, body["messages"]))
        except jinja2.TemplateError as error:
            return web.json_response({"error": {"message": str(error)}}, status=400)
        limit = body.get("max_tokens") or body.get("max_completion_tokens") or 0
        if self.max_model_len is not None and num_tokens + limit > self.max_model_len:
            self.requests.append(body)
            return web.json_response({"error": {"message": "the model's maximum context length is less"}}, status=400)
        return await super().answer(request)
