"""Conversations for a model whose template renders content alone: as a runner sends them, and as it learns them."""

import json
import subprocess
import sys
from pathlib import Path

from lightningbus.learner.transitions.chats import ChatTemplate, build_chat
from lightningbus.runners.protocol.model_format import ModelFormat, adapt_messages
from tests.examples.endpoint import EXAMPLES

SCRIPT = EXAMPLES / "small_model" / "text_calls.py"
FUNCTION = {"name": "search", "arguments": '{"query": "Bj\\u00f6rn"}'}
CHAT = [
    {"role": "system", "content": "Search."},
    {"role": "user", "content": "Who is Björn?"},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "call-0", "type": "function", "function": FUNCTION}]},
    {"role": "tool", "tool_call_id": "call-0", "content": "A baker."},
    {"role": "assistant", "content": "a baker"},
]


def convert(directory: Path, count: int) -> subprocess.CompletedProcess[str]:
    source = directory / "demonstrations.jsonl"
    source.write_text("".join(json.dumps({"messages": CHAT, "tools": [number]}) + "\n" for number in range(3)))
    arguments = ["--demonstrations", str(source), "--count", str(count), "--out", str(directory / "chats.jsonl")]
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], text=True, capture_output=True)


def test_calls_are_the_text_that_a_runner_makes_of_them(tmp_path: Path) -> None:
    assert convert(tmp_path, 2).returncode == 0
    chats = [json.loads(line) for line in (tmp_path / "chats.jsonl").read_text().splitlines()]
    sent = adapt_messages(CHAT, ModelFormat(renders_tool_calls=False))
    expected = [{"role": message["role"], "content": message["content"]} for message in sent]
    assert chats == [{"messages": expected}] * 2


def test_a_template_of_content_alone_is_taught_them(tmp_path: Path) -> None:
    convert(tmp_path, 1)
    messages = json.loads((tmp_path / "chats.jsonl").read_text())["messages"]
    template = ChatTemplate(
        lambda chat, _, begins: "".join(f"<{item['role']}>{item['content']}" for item in chat) + begins * "<assistant>",
        lambda text: list(text.encode()),
        [0],
    )
    calls = [bytes(call.response_ids.tolist()).decode() for call in build_chat(messages, None, template)]
    assert calls == ['<tool_call>\n{"name": "search", "arguments": {"query": "Björn"}}\n</tool_call>\0', "a baker\0"]


def test_more_conversations_than_there_are_is_an_error_in_a_sentence(tmp_path: Path) -> None:
    assert "has 3 conversations; asked for 4" in convert(tmp_path, 4).stderr
    assert not (tmp_path / "chats.jsonl").exists()
