"""A dry run refuses what vLLM refuses: its scripted engine and the real one, asked the same."""

import json
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from transformers import AutoTokenizer

from lightningbus.inference.engine.base import Engine
from lightningbus.inference.engine.vllm_engine import VllmEngine
from lightningbus.inference.settings import InferenceSettings
from lightningbus.run.preflight.call_checks import UnfitCallError, check_calls, find_misfit, find_unread
from lightningbus.run.preflight.chat_template import ChatTemplate
from lightningbus.run.preflight.scripted_engine import ModelCall, scripted_vllm
from tests.learner.conftest import tiny_model
from tests.lightningbus.test_cli import run, says

CONTEXT = 64
CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hello"}]
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
BAD_CHATS: dict[str, dict[str, Any]] = {
    "nothing is wrong": {},
    "a tool": {"tools": [TOOL]},
    "a tool, but none is chosen": {"tools": [TOOL], "tool_choice": "none"},
    "a tool that has to be called": {"tools": [TOOL], "tool_choice": "required"},
    "a tool by name": {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "add"}}},
    "another tool by name": {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "sub"}}},
    "a choice of a tool without tools": {"tool_choice": "auto"},
    "no list of tools": {"tools": "add"},
    "a tool without a name": {"tools": [{"type": "function", "function": {}}]},
    "no messages": {"messages": []},
    "messages of another kind": {"messages": "hello"},
    "no role": {"messages": [{"content": "hello"}]},
    "another role": {"messages": [{"role": "wizard", "content": "hello"}]},
    "a part of another kind": {"messages": [{"role": "user", "content": [{"type": "smell", "smell": "x"}]}]},
    "a picture": {
        "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;,"}}]}]
    },
    "text in parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]},
    "tokens as the context": {"max_tokens": CONTEXT},
    "tokens beyond the context": {"max_tokens": 4000},
    "completion tokens beyond the context": {"max_completion_tokens": 4000},
    "no tokens": {"max_tokens": 0},
    "fewer than no tokens": {"max_tokens": -1},
    "tokens in words": {"max_tokens": "many"},
    "a prompt beyond the context": {"messages": [{"role": "user", "content": "hello " * 200}]},
    "prompt and tokens beyond the context": {
        "messages": [{"role": "user", "content": "hello " * 5}],
        "max_tokens": CONTEXT - 2,
    },
    "a temperature below 0": {"temperature": -1},
    "a hot one": {"temperature": 3},
    "top_p above 1": {"top_p": 1.5},
    "top_k below -1": {"top_k": -5},
    "min_p above 1": {"min_p": 2},
    "a penalty above 2": {"presence_penalty": 3},
    "no repetition": {"repetition_penalty": 0},
    "no choices": {"n": 0},
    "very many choices": {"n": 1_000_000},
    "several choices without chance": {"n": 2, "temperature": 0},
    "log-probabilities of more than may be": {"logprobs": True, "top_logprobs": 25},
    "log-probabilities that are not asked for": {"top_logprobs": 2},
    "fewer than no log-probabilities": {"logprobs": True, "top_logprobs": -2},
    "an empty stop": {"stop": ""},
    "a stop of another kind": {"stop": {"a": 1}},
    "a bias outside the vocabulary": {"logit_bias": {"9999999": 1}},
    "a bias by words": {"logit_bias": {"hello": 1}},
    "an answer by a schema": {"response_format": SCHEMA},
    "a schema that is missing": {"response_format": {"type": "json_schema"}},
    "another format": {"response_format": {"type": "poem"}},
    "a pattern that is none": {"structured_outputs": {"regex": "("}},
    "two structures": {"structured_outputs": {"regex": "a", "choice": ["a"]}},
    "a grammar that is none": {"structured_outputs": {"grammar": "nonsense ::="}},
    "a seed in words": {"seed": "lucky"},
    "another model": {"model": "gpt-4o"},
    "options of a stream without one": {"stream": False, "stream_options": {"include_usage": True}},
    "a field that nobody knows": {"no_such_field": 1},
    "a template of its own": {"chat_template": "{{ messages[0].content }}"},
    "no new turn, and none that goes on": {"continue_final_message": True},
    "a salt that is empty": {"cache_salt": ""},
    "tokens that are not allowed": {"allowed_token_ids": []},
    "bad words that are none": {"bad_words": [""]},
}
BAD_COMPLETIONS: dict[str, dict[str, Any]] = {
    "no prompt": {"prompt": None},
    "an empty prompt": {"prompt": ""},
    "tokens outside the vocabulary": {"prompt": [9_999_999]},
    "tokens below 0": {"prompt": [-1]},
    "a prompt beyond the context": {"prompt": [5] * 200},
    "tokens beyond the context": {"prompt": [5], "max_tokens": 4000},
    "log-probabilities of more than may be": {"prompt": [5], "logprobs": 25},
    "an echo of the prompt": {"prompt": [5], "echo": True, "max_tokens": 1},
    "a suffix": {"prompt": [5], "suffix": "x"},
}
CALLS = {
    **{f"chat: {name}": ModelCall(CHAT, {"model": "policy", "messages": MESSAGES, "max_tokens": 4, **changes})
       for name, changes in BAD_CHATS.items()},
    **{f"completion: {name}": ModelCall("/v1/completions", {"model": "policy", "max_tokens": 4, **body})
       for name, body in BAD_COMPLETIONS.items()},
}  # fmt: skip


def make_model(path: Path, template: Callable[[str], str] = str, context: int = CONTEXT) -> Path:
    """A tiny model; ``template`` changes its chat template."""
    model = tiny_model(
        path, vocab_size=320, hidden_size=128, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=context,
    )  # fmt: skip
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template = template(tokenizer.chat_template)
    tokenizer.save_pretrained(model)
    return model


def node_of(model: Path, work: Path, **changes: Any) -> InferenceSettings:
    return InferenceSettings(
        model_path=model, work_dir=work, dtype="float32", max_model_len=CONTEXT, cpu_threads=1, frozen=True, **changes
    )


async def ask(engine: Engine, call: ModelCall) -> int:
    headers = {"Connection": "close", "Content-Type": "application/json"}
    async with engine.forward("POST", call.path, json.dumps(call.body).encode(), headers) as response:
        text = (await response.read()).decode()
        if response.status == 200 and '"error"' in text[:20]:
            return int(json.loads(text)["error"]["code"])
        return response.status


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model") / "model")


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "parsers", [{}, {"tool_parser": "hermes", "reasoning_parser": "qwen3"}], ids=["plain", "tools"]
)
async def test_the_scripted_engine_answers_as_vllm_does(model: Path, tmp_path: Path, parsers: dict[str, str]) -> None:
    node = node_of(model, tmp_path, **parsers)
    async with scripted_vllm(node, ["policy"]) as scripted:
        actual = {name: await ask(scripted, call) for name, call in CALLS.items()}
    async with VllmEngine(node) as real:
        await real.start()
        expected = {name: await ask(real, call) for name, call in CALLS.items()}
    assert actual == expected
    assert set(expected.values()) >= {200, 400}


def chat_of(messages: list[dict[str, Any]], **more: Any) -> ModelCall:
    return ModelCall(CHAT, {"model": "policy", "messages": messages, "max_tokens": 4, **more})


def tool_of(name: str, parameters: dict[str, Any]) -> dict[str, Any]:
    schema = {"type": "object", "properties": parameters}
    return {"type": "function", "function": {"name": name, "description": f"runs {name}", "parameters": schema}}


@asynccontextmanager
async def rendering(template: str, path: Path, **more: Any) -> AsyncIterator[ChatTemplate]:
    node = node_of(make_model(path / "model", lambda _: template), path, **{"tool_parser": "hermes", **more})
    async with scripted_vllm(node, ["policy"]) as server:
        yield ChatTemplate(server)


async def unread_of(template: ChatTemplate, *calls: ModelCall, thinks: bool = False) -> list[str]:
    sentences = [each async for each in find_unread(template, calls, thinks=thinks)]
    assert all(each.startswith("the model does not read ") for each in sentences)
    assert all("name one by --chat-template in inference.vllm_args" in each for each in sentences)
    return [each.removeprefix("the model does not read ").partition(":")[0] for each in sentences]


CONTENTS = "{% for m in messages %}{{ m.content }}{% endfor %}"
TOOLS = [tool_of(name, {}) for name in ("add", "search", "final_result")]
ROLES = ["the role 'system'", "the role 'user'"]


@pytest.mark.timeout(300)
async def test_a_template_that_prints_contents_alone_hides_nothing_in_silence(tmp_path: Path) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    system = {"role": "system", "content": "Be brief."}
    async with rendering(CONTENTS, tmp_path) as template:
        for words in ("hello", "Add, then answer with final_result.", "The address has final results."):
            with pytest.raises(
                UnfitCallError, match=r"^the chat template ignores .* of 'add', 'search', 'final_result'; "
            ):
                await unread_of(template, chat_of([system, {"role": "user", "content": words}], tools=TOOLS))
        described = [system, {"role": "user", "content": "Use add, search or final_result."}]
        tools = [f"the tool {name!r}" for name in ("add", "search", "final_result")]
        assert await unread_of(template, chat_of(described, tools=TOOLS)) == [*tools, *ROLES]
        seen = [system, {"role": "user", "content": [{"type": "text", "text": "x"}, image]}]
        assert await unread_of(template, chat_of(seen)) == [*ROLES, "the image in part 2 of message 2 (user)"]


CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
CONVERSATION: list[dict[str, Any]] = [
    {"role": "system", "content": "Use add or search."},
    {"role": "user", "name": "Ann", "content": "one"},
    {"role": "assistant", "reasoning": "hm", "content": "two", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": CALL["id"], "content": "three"},
    {"role": "assistant", "content": "four"},
    {"role": "user", "name": "Bob", "content": [{"type": "text", "text": "five"}, {"type": "text", "text": "six"}]},
]
EXACT = """
{%- for t in tools or [] %}{{ t | tojson }}{% endfor %}
{%- for m in messages %}<{{ m.role }} {{ m.name }}>{{ m.reasoning_content }}{{ m.content }}
{%- for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}</>{% endfor %}
{%- if add_generation_prompt %}<assistant>{% endif %}"""
TERSE = """
{%- for t in tools or [] %}{% if t.function.name == 'add' %}{{ t.function.name }}{{ t.function.description }}
{%- for name in t.function.parameters.properties %}{{ name }}{% endfor %}{% endif %}{% endfor %}
{%- for m in messages %}<{{ m.role if m.role != 'tool' else 'user' }}>{{ m.content }}
{%- for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments.keys() | list }}{% endfor %}{% endfor %}
{%- if add_generation_prompt %}<assistant>{% endif %}"""


@pytest.mark.timeout(300)
async def test_each_part_that_the_template_leaves_out_is_named(tmp_path: Path) -> None:
    described = {"a": {"type": "string", "description": "first", "enum": ["x", "y"]}}
    call = chat_of(CONVERSATION, tools=[tool_of("add", described), tool_of("search", described)])
    calls = [chat_of(CONVERSATION[:2], tools=call.body["tools"]), call]
    async with rendering(EXACT, tmp_path / "exact", reasoning_parser="qwen3") as template:
        assert await unread_of(template, *calls, thinks=True) == []
    async with rendering(TERSE, tmp_path / "terse", reasoning_parser="qwen3") as template:
        assert await unread_of(template, *calls, thinks=True) == [
            "the description of 'a' in the parameters of the tool 'add'",
            "the values of 'a' in the parameters of the tool 'add'",
            "the keyword 'type' in the tool 'add'",
            "the tool 'search'",
            "the name 'Ann' of message 2 (user)",
            "the thought of message 3 (assistant)",
            "the name 'Bob' of message 6 (user)",
            "the role 'tool'",
            "the model's thoughts before a user's next message",
            "the model's thoughts before a tool's result",
        ]


CALLING = """
{%- for t in tools or [] %}{{ t | tojson }}{% endfor %}
{%- for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}{% for c in m.tool_calls or [] %}CALL{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
ARGUMENTS = (
    "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v | tojson }}{{ ', ' if not loop.last }}{% endfor %}"
)
FORMS = {
    "hermes": (
        '<tool_call>\n{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>'
    ),
    "pythonic": f"[{{{{ c.function.name }}}}({ARGUMENTS})]",
    "none": "I call {{ c.function.name }}.",
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("form", "parser", "sentence"),
    [
        ("hermes", "hermes", ""),
        ("pythonic", "hermes", "'pythonic'"),
        ("none", "hermes", "no parser of vLLM does"),
    ],
)
async def test_a_tool_parser_that_does_not_fit_the_template_is_named_beside_one_that_does(
    form: str, parser: str, sentence: str, tmp_path: Path
) -> None:
    template = CALLING.replace("CALL", FORMS[form])
    node = node_of(make_model(tmp_path / "model", lambda _: template), tmp_path, tool_parser=parser)
    async with scripted_vllm(node, ["policy"]) as server:
        try:
            misfit = await find_misfit(server, node, "policy")
        except UnfitCallError as error:
            misfit = str(error)
    assert sentence in misfit and misfit.startswith(f"inference.tool_parser: {parser!r} does not" if sentence else "")
    assert bool(misfit) == bool(sentence), misfit


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("form", "choice", "sentence"),
    [
        (
            "hermes",
            "auto",
            "set it to 'granite4' or 'hermes', which can read a call as the template of 'policy' writes it",
        ),
        ("hermes", "required", "set it to 'granite4' or 'hermes', which can read a call"),
        ("pythonic", "auto", "set it to 'pythonic', which can read a call"),
        ("none", "auto", "it is the parser of the model's own calls"),
        ("hermes", "none", ""),
    ],
)
async def test_a_node_without_a_tool_parser_is_given_the_name_of_one_that_fits(
    form: str, choice: str, sentence: str, tmp_path: Path
) -> None:
    template = CALLING.replace("CALL", FORMS[form])
    model = make_model(tmp_path / "model", lambda _: template, context=512)
    node = node_of(model, tmp_path).model_copy(update={"max_model_len": 512})
    call = chat_of(MESSAGES, tools=[TOOL], tool_choice=choice)
    try:
        warning = " ".join([each async for each in check_calls([call], [node], is_here=True)])
    except UnfitCallError as error:
        warning = str(error)
    assert sentence in warning
    assert warning.startswith("inference.tool_parser: vLLM refuses tools without one; ") == bool(sentence), warning


AGENTS = """
def ask(text="hello", **more):
    from openai import OpenAI

    messages = [{"role": "user", "content": text}]
    return OpenAI(max_retries=0).chat.completions.create(model="policy", messages=messages, **more)


def is_right(task):
    ask(max_tokens=8)
    return 1.0


def calls_tools(task):
    ask(tools=[{"type": "function", "function": {"name": "add", "parameters": {}}}], max_tokens=8)
    return 1.0


def says_too_much(task):
    try:
        ask("hello " * 400)
    except Exception:
        pass
    return 1.0
"""


@pytest.mark.timeout(500)
@pytest.mark.parametrize("command", [("train", "-c", "run.yaml", "--dry-run"), ("train", "-c", "run.yaml")])
@pytest.mark.parametrize(
    ("agent", "sentence"),
    [
        ("calls_tools", "the chat template ignores tools: the model would not know of 'add'; take a model"),
        ("says_too_much", "vLLM answers 400: "),
    ],
)
def test_a_call_that_vllm_refuses_is_said_before_anything_starts(
    command: tuple[str, ...], agent: str, sentence: str, model: Path, tmp_path: Path
) -> None:
    shutil.copytree(model, tmp_path / "model")
    (tmp_path / "agents.py").write_text(AGENTS)
    (tmp_path / "tasks.jsonl").write_text('{"id": "a", "input": 1}\n')
    settings = {
        "bus": {"port": 0},
        "store": {"http_port": 0},
        "inference": [{"model_path": "model", "dtype": "float32", "max_model_len": CONTEXT, "cpu_threads": 1}],
        "runners": [{"entrypoint": f"agents:{agent}"}],
        "learner": {"model_path": "model", "tasks": "tasks.jsonl", "seq_len": CONTEXT, "cpu_threads": 1},
        "eval": {"tasks": "tasks.jsonl"},
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(settings))
    sentence_said = says(run(*command, cwd=tmp_path, timeout=400))
    assert f"agents:{agent}: a call of task 'a' would fail: {sentence}" in sentence_said
    assert agent == "calls_tools" or "ask for fewer tokens, or raise inference.max_model_len" in sentence_said
    assert not (tmp_path / "runs" / "run" / "store").exists()
