"""Answers to imitate: chats and files of tokens as sequences, in an order that a step's number gives."""

import gzip
import json
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet
from transformers import AutoModelForCausalLM, AutoTokenizer

from lightningbus.analysis.replay import write_parquet
from lightningbus.learner.backend import make_builder
from lightningbus.learner.batching.demonstrations import Demonstration, Demonstrations
from lightningbus.learner.data_lines import read_lines
from lightningbus.learner.demonstration_files import load_demonstrations, read_messages
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.learner.training.verl_trainer import VerlTrainer
from lightningbus.learner.transitions.chats import ChatTemplate, build_chat, demonstrated_call
from tests.factories import model_call, rollout
from tests.learner.conftest import LEARNING_RATE, settings_for, tiny_model, tiny_tokenizer
from tests.learner.test_trainer import conversations, masters

USER, END = "<user>", 3
LINES = [
    [{"role": "user", "content": "one"}, {"role": "assistant", "content": "1"}],
    [
        {"role": "system", "content": "count"},
        {"role": "user", "content": "two"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "and"},
        {"role": "assistant", "content": "3!"},
    ],
    [{"role": "user", "content": "three and more"}, {"role": "assistant", "content": "3"}],
]


def render(messages: Any, tools: Any, begins_answer: bool) -> str:
    """Render as a chat template of a model does, with an end token and a line after it."""
    text = "".join(f"<{message['role']}>{message['content']}~\n" for message in messages)
    return text + ("<assistant>" if begins_answer else "")


def encode(text: str) -> list[int]:
    return [END if letter == "~" else ord(letter) for letter in text]


TEMPLATE = ChatTemplate(render, encode, [END])


def text_of(token_ids: Any) -> str:
    return "".join("~" if token == END else chr(token) for token in token_ids)


def test_each_answer_is_a_call_that_ends_where_an_engine_ends_it() -> None:
    calls = build_chat(LINES[1], None, TEMPLATE)
    assert [text_of(call.response_ids) for call in calls] == ["2~", "3!~"]
    assert text_of(calls[0].prompt_ids) == "<system>count~\n<user>two~\n<assistant>"
    whole = np.concatenate([calls[0].prompt_ids, calls[0].response_ids])
    assert calls[1].prompt_ids[: len(whole)].tolist() == whole.tolist(), "so both are trained in one sequence"


def test_a_template_without_an_end_token_gets_one() -> None:
    bare = ChatTemplate(lambda messages, *_: "".join(each["content"] for each in messages), encode, [END, 5])
    (call,) = build_chat(LINES[0], None, bare)
    assert text_of(call.response_ids) == "1~"


def test_answers_of_weight_0_are_context() -> None:
    messages: list[Any] = [dict(each) for each in LINES[1]]
    messages[2]["weight"] = 0
    (call,) = build_chat(messages, None, TEMPLATE)
    assert text_of(call.response_ids) == "3!~"


def test_a_template_that_rewrites_the_prompt_is_refused() -> None:
    template = ChatTemplate(lambda messages, tools, begins: f"{len(messages)}{begins}", encode, [END])
    with pytest.raises(ValueError, match="message 2: the model's chat template does not continue the prompt"):
        build_chat(LINES[0], None, template)


BEGINS_THOUGHT = """{% for m in messages %}{% set text = m.content %}\
{% if m.role == 'assistant' and '</think>' in text %}{% set text = text.split('</think>')[-1] %}{% endif %}\
<{{ m.role }}>{{ text }}{{ '~' if m.role == 'assistant' }}{% endfor %}\
{{ '<assistant><think>\\n' if add_generation_prompt }}"""
"""Template in which, as in DeepSeek-R1, the prompt begins a thought, and answers of a chat have none."""
SYSTEM_LAST = """{% set system = messages[0].content if messages[0].role == 'system' else '' %}\
{% for m in messages %}{% if m.role == 'user' %}[INST] {% if loop.last and system %}{{ system }}\n\n{% endif %}\
{{ m.content }}[/INST]{% elif m.role == 'assistant' %} {{ m.content }}~{% endif %}{% endfor %}"""
"""Template in which, as in Mistral, the last message has the system's text while it is the user's."""


def render_by(template: str) -> ChatTemplate:
    compiled = jinja2.Environment().from_string(template)

    def render_text(messages: Any, tools: Any, begins_answer: bool) -> str:
        return compiled.render(messages=messages, tools=tools, add_generation_prompt=begins_answer)

    return ChatTemplate(render_text, encode, [END])


def test_a_prompt_that_begins_a_thought_ends_before_it_where_an_answer_has_none() -> None:
    calls = build_chat(LINES[1], None, render_by(BEGINS_THOUGHT))
    assert [text_of(call.response_ids) for call in calls] == ["2~", "3!~"]
    assert text_of(calls[1].prompt_ids) == "<system>count<user>two<assistant>2~<user>and<assistant>"


def test_a_thought_that_the_template_drops_is_refused() -> None:
    for answer in ({"content": "<think>\nhm</think>1"}, {"content": "1", "reasoning_content": "hm"}):
        with pytest.raises(ValueError, match="message 2: the model's chat template does not continue the prompt"):
            build_chat([LINES[0][0], {"role": "assistant", **answer}], None, render_by(BEGINS_THOUGHT))


def test_the_systems_text_may_stand_in_the_last_question() -> None:
    calls = build_chat(LINES[1], None, render_by(SYSTEM_LAST))
    assert [text_of(call.response_ids) for call in calls] == [" 2~", " 3!~"]
    assert text_of(calls[1].prompt_ids) == "[INST] two[/INST] 2~[INST] count\n\nand[/INST]"
    same = [{**each, "content": "go on"} if each["role"] == "user" else each for each in LINES[1]]
    assert [text_of(call.response_ids) for call in build_chat(same, None, render_by(SYSTEM_LAST))] == [" 2~", " 3!~"]


CALLING = [
    {"role": "user", "content": "7 + 5?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": {"name": "calculator", "arguments": '{"a": 7}'}}],
    },
]
"""A call of a tool, which a template of contents alone leaves out."""


def test_a_tool_call_that_the_template_leaves_out_is_refused() -> None:
    with pytest.raises(
        ValueError, match="message 2: the model's chat template leaves out the call of calculator: write"
    ):
        build_chat(CALLING, None, TEMPLATE)

    def render_calls(messages: Any, tools: Any, begins_answer: bool) -> str:
        texts = [{**each, "content": f"{each['content']}{json.dumps(each.get('tool_calls', ''))}"} for each in messages]
        return render(texts, tools, begins_answer)

    (call,) = build_chat(CALLING, None, ChatTemplate(render_calls, encode, [END]))
    assert "calculator" in text_of(call.response_ids)


def test_messages_that_a_template_cannot_render_are_named_with_the_file(chat_model: Path, tmp_path: Path) -> None:
    """A template that adds a number to a text raises TypeError."""
    model = with_template(
        chat_model, tmp_path, "{% for m in messages %}{{ '<' + m['name'] + '>' + m['content'] }}{% endfor %}"
    )
    named = [{**each, "name": "n"} for each in LINES[0]]
    path = write_lines(tmp_path / "chats.jsonl", [named, [named[0], {**named[1], "name": 5}]])
    with pytest.raises(ValueError, match=r"chats\.jsonl.*2.*refuses the first 2 messages: can only concatenate str"):
        load_demonstrations(path, model)


def with_template(model: Path, place: Path, template: str) -> Path:
    """A copy of a model's tokenizer and configuration, with another chat template."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(place / "model")
    (place / "model" / "config.json").write_text((model / "config.json").read_text())
    return place / "model"


READS_TEXT = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{{ '<assistant>' if add_generation_prompt }}"
)
READS_PARTS = READS_TEXT.replace(
    "{{ m.content }}",
    "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}",
)
A, B = {"type": "text", "text": "a"}, {"type": "output_text", "text": "b"}


@pytest.mark.parametrize(
    ("template", "content", "expected"),
    [
        (READS_TEXT, [A], "a"),
        (READS_TEXT, [A, B], "a\nb"),
        (READS_TEXT, ["a", {"type": "refusal", "refusal": "b"}], "a\nb"),
        (READS_TEXT, [A, {"type": "text", "text": None}], "a"),
        (READS_TEXT, [], ""),
        (READS_TEXT, None, ""),
        (READS_PARTS, [A, B], "ab"),
        (READS_PARTS, None, ""),
        (READS_PARTS, "a", "a"),
    ],
)
def test_content_is_the_text_that_vllm_makes_of_it(
    chat_model: Path, tmp_path: Path, template: str, content: Any, expected: str
) -> None:
    model = with_template(chat_model, tmp_path, template)
    chat = [{"role": "user", "content": content}, {"role": "assistant", "content": content}]
    (demonstration,) = load_demonstrations(write_lines(tmp_path / "chats.jsonl", [chat]), model)
    tokenizer = AutoTokenizer.from_pretrained(model)
    (call,) = demonstration.calls
    assert tokenizer.decode(call.prompt_ids) == f"<user>{expected}<assistant>"
    assert tokenizer.decode(call.response_ids) == expected + tokenizer.eos_token


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (5, "message 2: its content is int: give a text, or a list of parts of text"),
        ({"text": "x"}, "message 2: its content is dict"),
        (
            [{"type": "image_url", "image_url": {"url": "data:"}}],
            "message 2: its content has a part of type 'image_url'",
        ),
        ([7], "message 2: its content has a part of type 'int'"),
        ([{"type": "text", "text": 7}], "message 2: its content has a part whose text is not a text"),
        ([{"type": ["text"]}], "message 2: its content has a part of type"),
    ],
)
def test_content_that_is_not_text_is_refused_by_its_line(
    chat_model: Path, tmp_path: Path, content: Any, sentence: str
) -> None:
    path = write_lines(tmp_path / "chats.jsonl", [LINES[0], [LINES[0][0], {"role": "assistant", "content": content}]])
    path.write_text("\n\n" + path.read_text())
    with pytest.raises(ValueError, match=f"chats.jsonl, line 4: {sentence}"):
        load_demonstrations(path, chat_model)


CALL_ROW = {"rollout": "a", "call": 0, "prompt_ids": [5, 6], "response_ids": [7]}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"prompt_ids": None}, "it has no prompt_ids"),
        ({"response_ids": None}, "it has no response_ids"),
        ({"rollout": None}, "it has no rollout"),
        ({"call": None}, "it has no call"),
        ({"call": "x"}, "call is not the number of a call but 'x'"),
        ({"prompt_ids": "text"}, "prompt_ids is not a list of token ids but 'text'"),
        ({"prompt_ids": ["x"]}, "prompt_ids has 'x', which is not a token id"),
        ({"response_ids": [-5]}, "response_ids has '-5', which is not a token id"),
        ({"response_ids": [1.5]}, "response_ids has '1.5', which is not a token id"),
        ({"response_ids": [True]}, "response_ids has 'True', which is not a token id"),
        ({"response_ids": [2**70]}, "response_ids has token .*, but the model has 320"),
        ({"rollout": ["a"]}, "rollout is not a name"),
        ({}, "call 0 of rollout 'a' is in line 1 too"),
    ],
)
def test_a_wrong_row_of_a_call_is_refused_by_its_line(
    chat_model: Path, tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    path = tmp_path / "calls.jsonl"
    path.write_text(f"{json.dumps(CALL_ROW)}\n\n{json.dumps(CALL_ROW | changes)}\n")
    with pytest.raises(ValueError, match=f"calls.jsonl, line 3: {sentence}"):
        load_demonstrations(path, chat_model)


def test_calls_of_a_rollout_belong_together_wherever_their_rows_are(chat_model: Path, tmp_path: Path) -> None:
    rows = [CALL_ROW | {"rollout": name, "call": index} for index in (1, 0) for name in ("a", "b")]
    path = tmp_path / "calls.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    loaded = load_demonstrations(path, chat_model)
    assert [(each.id, [call.index for call in each.calls]) for each in loaded] == [("a", [0, 1]), ("b", [0, 1])]


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("chat"), vocab_size=320)


def write_lines(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join(json.dumps({"messages": line}) + "\n" for line in lines))
    return path


def test_jsonl_and_parquet_of_chats_are_the_same(chat_model: Path, tmp_path: Path) -> None:
    table = pa.Table.from_pylist([{"messages": line, "tools": None} for line in LINES])
    parquet.write_table(table, tmp_path / "chats.parquet")
    lines = load_demonstrations(write_lines(tmp_path / "chats.jsonl", LINES), chat_model)
    columns = load_demonstrations(tmp_path / "chats.parquet", chat_model)
    assert [each.id for each in lines] == [each.id for each in columns] == ["chat-1", "chat-2", "chat-3"]
    for line, column in zip(lines, columns, strict=True):
        assert [call.response_ids.tolist() for call in line.calls] == [
            call.response_ids.tolist() for call in column.calls
        ]
    tokenizer = tiny_tokenizer(tmp_path)
    assert tokenizer.decode(lines[0].calls[0].response_ids) == "1" + tokenizer.eos_token


def test_tokens_of_rollouts_are_taken_as_they_were_sampled(chat_model: Path, tmp_path: Path) -> None:
    calls = [model_call(0, [5, 6], [7]), model_call(1, [5, 6, 7, 8], [9, 10])]
    write_parquet(tmp_path / "best.parquet", [rollout("a", 0, 1.0, calls=calls), rollout("b", 0, 1.0)])
    first, second = load_demonstrations(tmp_path / "best.parquet", chat_model)
    assert (first.id, second.id) == ("a.0", "b.0")
    assert [call.prompt_ids.tolist() for call in first.calls] == [[5, 6], [5, 6, 7, 8]]
    assert [call.response_ids.tolist() for call in first.calls] == [[7], [9, 10]]
    write_parquet(tmp_path / "other.parquet", [rollout("a", 0, 1.0, calls=[model_call(0, [5], [999])])])
    with pytest.raises(ValueError, match="line 1: response_ids has token 999, but the model has 320"):
        load_demonstrations(tmp_path / "other.parquet", chat_model)


def test_a_file_may_be_packed_marked_and_a_table(chat_model: Path, tmp_path: Path) -> None:
    text = write_lines(tmp_path / "chats.jsonl", LINES).read_bytes()
    (tmp_path / "marked.jsonl").write_bytes(b"\xef\xbb\xbf" + text.replace(b"\n", b"\r\n"))
    (tmp_path / "chats.jsonl.gz").write_bytes(gzip.compress(text))
    parquet.write_table(pa.Table.from_pylist([{"messages": line} for line in LINES]), tmp_path / "CHATS.PARQUET")
    for name in ("marked.jsonl", "chats.jsonl.gz", "CHATS.PARQUET"):
        assert len(load_demonstrations(tmp_path / name, chat_model)) == len(LINES)
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(text)[:-9])
    with pytest.raises(ValueError, match=r"cut\.jsonl\.gz cannot be read: Compressed file ended"):
        load_demonstrations(tmp_path / "cut.jsonl.gz", chat_model)


def test_records_of_a_column_lack_the_fields_of_others(tmp_path: Path) -> None:
    lines = [{"messages": [{"role": "user", "tool_calls": [{"arguments": {name: 1}}]}]} for name in "ab"]
    parquet.write_table(pa.Table.from_pylist(lines), tmp_path / "chats.parquet")
    assert [line for _, line in read_lines(tmp_path / "chats.parquet")] == lines


def call_of(arguments: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "add", "arguments": arguments}}]}


@pytest.mark.parametrize(("arguments", "read"), [('{"a": 1}', {"a": 1}), ({"a": 1}, {"a": 1}), (None, {}), ("", {})])
def test_arguments_of_a_call_are_an_object_as_vllm_gives_them(arguments: Any, read: Any) -> None:
    (message,) = read_messages([call_of(arguments)]) or []
    assert message["tool_calls"][0]["function"]["arguments"] == read


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_a_thought_has_both_of_its_names(name: str) -> None:
    (message,) = read_messages([{"role": "assistant", "content": "4", name: "2 + 2"}]) or []
    assert (message["reasoning"], message["reasoning_content"]) == ("2 + 2", "2 + 2")


def render_known(messages: Any, tools: Any, begins_answer: bool) -> str:
    """Render as a template that drops messages of unknown roles, and writes results of tools as JSON."""
    known = [message for message in messages if message["role"] in ("system", "user", "assistant")]
    results = "".join(json.dumps(message["content"]) for message in messages if message["role"] == "tool")
    return results + render(known, tools, begins_answer)


@pytest.mark.parametrize(
    ("messages", "sentence"),
    [
        ([{"role": "developer", "content": "be kind"}], "message 1: .* leaves it out: its role is 'developer'"),
        ([LINES[0][0], {"role": "human", "content": "be kind"}], "message 2: .* leaves it out: its role is 'human'"),
        ([{"content": "be kind"}], "message 1 has no role"),
        ([{"role": None, "content": [{"type": "text", "text": "be kind"}]}], "message 1 has no role"),
        ([{"role": "assistant", "content": "", "weight": "0"}], "message 1: its weight is '0': give 0 or 1"),
        ([{"role": "assistant", "content": "", "weight": 0.5}], "message 1: its weight is 0.5: give 0 or 1"),
        (
            [{"role": "assistant", "content": "", "function_call": {"name": "add", "arguments": "{}"}}],
            "message 1: the model's chat template leaves out the call of add",
        ),
        (
            [{"role": "assistant", "content": "", "tool_calls": [{"name": "add", "arguments": {}}]}],
            "message 1: the model's chat template leaves out the call of add",
        ),
    ],
)
def test_what_a_template_would_leave_out_in_silence_is_refused(messages: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        build_chat([*messages, *LINES[0]], None, ChatTemplate(render_known, encode, [END]))


def test_what_a_template_writes_in_another_form_is_taken() -> None:
    results = {"role": "tool", "content": 'a "quoted" word\n'}
    (call,) = build_chat([results, *LINES[0]], None, ChatTemplate(render_known, encode, [END]))
    assert "quoted" in text_of(call.prompt_ids)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{"messages": [], "messages": []}', "line 1 is no JSON: the key 'messages' stands twice"),
        (
            json.dumps({"messages": [LINES[0][0], call_of('{"a": ')]}),
            "line 1: message 2: the arguments of its call of add are no JSON",
        ),
        (json.dumps({"messages": LINES[0], "tools": "none"}), "line 1: its tools are no JSON"),
        (json.dumps({"messages": LINES[0], "tools": {"add": {}}}), "line 1: its tools are no list of objects"),
        ("nonsense", "line 1 is no JSON"),
        ("[1]", "line 1 is no JSON object"),
        ('{"text": "x"}', "line 1: it has no list of messages"),
        ('{"messages": [{"role": "user", "content": "x"}]}', "line 1: no message is an assistant's"),
    ],
)
def test_a_wrong_line_is_named(chat_model: Path, tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "chats.jsonl").write_text(text)
    with pytest.raises(ValueError, match=sentence):
        load_demonstrations(tmp_path / "chats.jsonl", chat_model)
    with pytest.raises(ValueError, match="cannot be read: No such file"):
        load_demonstrations(tmp_path / "absent.jsonl", chat_model)


def supervised(model_path: Path, path: Path, **changes: Any) -> LearnerSettings:
    """Settings of a learner that imitates a file."""
    fields = {"path": path, "batch_size": 2, **changes.pop("supervised", {})}
    return settings_for(model_path, groups_per_step=0, supervised=fields, **changes)


def test_every_pass_has_each_demonstration_once(model_path: Path, tmp_path: Path) -> None:
    demonstrations_of_five = [
        Demonstration(f"d{number}", [demonstrated_call(0, [1, 2], [number + 3])]) for number in range(5)
    ]
    demonstrations = Demonstrations(demonstrations_of_five, supervised(model_path, tmp_path))
    taken = [sequence.rollout_id for step in range(5) for sequence in demonstrations.take(step)]
    first, second = taken[:5], taken[5:]
    assert sorted(first) == [f"d{number}#0" for number in range(5)]
    assert sorted(second) == [f"d{number}#1" for number in range(5)]
    assert [name[:2] for name in first] != [name[:2] for name in second]
    again = Demonstrations(demonstrations_of_five, supervised(model_path, tmp_path))
    assert [sequence.rollout_id for sequence in again.take(3)] == taken[6:8], "a step's number says what it trains"


def test_what_fits_no_sequence_is_left_out(model_path: Path, tmp_path: Path) -> None:
    long = Demonstration("long", [demonstrated_call(0, [1] * 200, [2])])
    settings = supervised(model_path, tmp_path / "f")
    demonstrations = Demonstrations([long, Demonstration("d", [demonstrated_call(0, [1], [2])])], settings)
    assert (len(demonstrations), demonstrations.num_left_out) == (1, 1)
    with pytest.raises(ValueError, match=r"supervised.path: .*/f holds no answer to learn of at most seq_len \(128\)"):
        Demonstrations([long], settings)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"groups_per_step": 0}, "groups_per_step must be at least 1: 0 is for a learner with `supervised`"),
        ({"groups_per_step": 0, "supervised": {"path": "f"}, "tasks": "t"}, "tasks need groups_per_step"),
    ],
)
def test_settings_that_train_nothing_are_refused(changes: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        LearnerSettings.model_validate({"model_path": "m", **changes})


def train_plainly(model_path: Path, batches: list[list[Any]]) -> dict[str, torch.Tensor]:
    """Train as anyone would in torch: AdamW on the mean over the tokens of each batch, with clipped gradients."""
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    for rows in batches:
        count, total = sum(row.num_tokens for row in rows), torch.zeros(())
        for row in rows:
            log_probs = torch.log_softmax(model(input_ids=torch.tensor(row.token_ids)[None]).logits[0, :-1], -1)
            picked = log_probs.gather(1, torch.tensor(row.token_ids[1:])[:, None])[:, 0]
            total = total - picked[torch.tensor(row.trained[1:])].sum()
        (total / count).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return dict(model.state_dict())


@pytest.mark.parametrize("kind", ["chats", "rollouts"])
def test_supervised_steps_reach_what_a_plain_loop_does(chat_model: Path, tmp_path: Path, kind: str) -> None:
    """The weights after six steps are the same: of chats by the model's template, and of a run's best rollouts."""
    if kind == "chats":
        path = write_lines(tmp_path / "chats.jsonl", LINES)
    else:
        path = tmp_path / "best.parquet"
        write_parquet(path, conversations(count=5))
    settings = supervised(chat_model, path, actor={"loss_agg_mode": "token-mean"})
    builder, trainer = make_builder(settings), VerlTrainer(settings)
    batches = [builder.build([], step, step=step) for step in range(6)]
    metrics = [trainer.step(batch) for batch in batches]
    assert metrics[-1]["actor/ce_loss"] < metrics[0]["actor/ce_loss"]
    expected = train_plainly(chat_model, [batch.sequences for batch in batches])
    for name, weights in masters(trainer).items():
        torch.testing.assert_close(weights, expected[name], atol=0.1 * LEARNING_RATE, rtol=1e-3)
