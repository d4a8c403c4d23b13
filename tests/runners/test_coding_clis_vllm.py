"""The real Claude Code and Codex CLI at the real gateway, with a real vLLM: streams are on record as they were.

One model is SmolLM2-135M-Instruct: its template leaves tools out, and its context gets full. The other is of chance:
it has a long context, and its template renders the tools.
"""

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

from lightningbus.bus.client import Bus
from lightningbus.inference.settings import InferenceSettings
from lightningbus.learner.transitions.tokenizer import load_detokenizer
from lightningbus.run.pretrained.catalog import SMOLLM2
from lightningbus.run.pretrained.folder import provide_folder
from tests.inference.test_node_models_vllm import ready
from tests.polling import HANG_SECONDS
from tests.runners.coding_sessions import CLIS, Session, claude, codex, gateway_statuses, judge, make_directory, run
from tests.runners.scripted_vllm import Exchange, ScriptedVllm
from tests.runners.session_engine import Step, call
from tests.runners.test_dialects import Desk, opened

pytestmark = [
    pytest.mark.slow,
    pytest.mark.e2e,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not (CLIS / "node_modules").is_dir(), reason="CODING_CLIS names no directory with the CLIs"),
]
SECONDS = 4 * HANG_SECONDS
"""A session: each program's first prompt has thousands of tokens, which two cores compute for a minute."""
CONTEXT = 32_768
"""Tokens of the model of chance."""
WITH_TOOLS = """
{%- if messages[0].role == 'system' %}{% set system, rest = messages[0].content, messages[1:] %}
{%- else %}{% set system, rest = '', messages %}{% endif %}<|im_start|>system
{{ system }}{% for tool in tools or [] %}
{{ tool | tojson }}{% endfor %}<|im_end|>
{% for m in rest %}<|im_start|>{{ m.role }}
{{ m.content or '' }}{% for c in m.tool_calls or [] %}
<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""Qwen2.5's, without its words about tools."""


def make_model(tokenizer: Path, directory: Path, max_model_len: int) -> Path:
    """A model of chance with another one's tokens and a long context."""
    tokens = AutoTokenizer.from_pretrained(tokenizer)
    tokens.chat_template = WITH_TOOLS
    tokens.save_pretrained(directory)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokens), hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=max_model_len, bos_token_id=None,
        eos_token_id=tokens.eos_token_id, dtype="float32",
    )  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(directory)
    return directory


class Bed:
    """A node with a scripted vLLM."""

    def __init__(self, bus: Bus, engine: ScriptedVllm, model: Path) -> None:
        self.bus, self.engine, self.model = bus, engine, model

    async def play(
        self, directory: Path, steps: Sequence[Step], start: Callable[[Desk], tuple[list[str], dict[str, str]]]
    ) -> Session:
        """Run a program until it has no more to do; what vLLM refuses is too long, and all else is on record."""
        self.engine.begin(steps)
        before = gateway_statuses()
        async with opened(self.bus, SECONDS, model_aliases={"claude-*": "policy:small"}) as desk:
            command, variables = start(desk)
            status, output = await run(command, directory, seconds=SECONDS, **variables)
            detokenize = load_detokenizer(self.model)
            assert detokenize is not None
            session = judge(desk, detokenize, before)
        exchanges = "\n".join(each.describe() for each in self.engine.exchanges)
        is_done = status == 0 and not self.engine.steps
        assert is_done or "Prompt is too long" in output, f"{output[-3000:]}\n{exchanges}"
        assert (directory / "work" / "a.txt").read_text() == "two\n"
        refused = [each.error for each in self.engine.exchanges if each.status != 200]
        assert all("maximum context length" in error for error in refused), refused
        assert is_done or session.refused["400"], "Claude Code says so of its own accord"
        assert session.refused["400"] <= len(refused) and session.refused.keys() <= {"400", "404"}
        assert session.refused["404"] <= 1, "Claude Code asks for HEAD of its base URL when it starts"
        assert not session.reasons, "each call has its tokens"
        check_recorded(session, [each for each in self.engine.exchanges if each.status == 200])
        lengths = [len(each.prompt_ids) // 4 for each in session.calls]
        print(f"{Path(command[0]).name}: {len(lengths)} calls of {lengths[0]} to {max(lengths)} tokens,", end=" ")
        print(f"{len(refused)} beyond the context, breaks {dict(session.breaks)}")
        return session


def check_recorded(session: Session, exchanges: Sequence[Exchange]) -> None:
    """The joined deltas of each stream are the tokens and the message on record."""
    assert len(session.calls) == len(exchanges)
    for recorded, exchange in zip(session.calls, exchanges, strict=True):
        tokens, text, calls = exchange.join()
        message = json.loads(recorded.response)
        functions = [each["function"] for each in message.get("tool_calls") or []]
        assert [(each["name"], each["arguments"]) for each in functions] == calls
        assert (message["content"] or "") == text
        assert memoryview(recorded.response_ids).cast("I").tolist() == tokens
        logprobs = memoryview(recorded.logprobs).cast("f").tolist()
        assert len(logprobs) == len(tokens) and min(logprobs) < 0, "the words are of the model's choice"


@asynccontextmanager
async def serving(bus: Bus, model: Path, directory: Path, **settings: Any) -> AsyncIterator[Bed]:
    engines: list[ScriptedVllm] = []

    def open_engine(settings: InferenceSettings) -> ScriptedVllm:
        engines.append(ScriptedVllm(settings))
        return engines[-1]

    fields = {"model_path": model, "frozen": True, "tool_parser": "hermes", "cpu_threads": 2, **settings}
    async with ready(bus, directory, 1, open_engine, **fields):
        yield Bed(bus, engines[0], model)


async def play_claude(bed: Bed, directory: Path, num_long: int) -> Session:
    """Five turns of Claude Code, and between them as many that fill the context."""
    path = str(directory / "work" / "a.txt")
    steps = [
        call("Read", file_path=path),
        call("Bash", command="exit 3", description="fails"),
        call("Edit", file_path=path, old_string="one", new_string="two"),
        Step(calls=[("Read", json.dumps({"file_path": path})), ("Bash", json.dumps({"command": "cat a.txt"}))]),
        *[call("Bash", command=f"head -60 long.txt # {number}") for number in range(num_long)],
        Step(),
    ]
    return await bed.play(directory, steps, lambda desk: claude(desk, "-p", "mend a.txt"))


async def play_codex(bed: Bed, directory: Path, num_long: int, compact_at: int) -> Session:
    """The same of Codex CLI."""
    steps = [
        call("exec_command", cmd="cat a.txt"),
        call("exec_command", cmd="exit 3"),
        call("exec_command", cmd="echo two > a.txt"),
        Step(calls=[("exec_command", json.dumps({"cmd": "cat a.txt"})), ("exec_command", json.dumps({"cmd": "ls"}))]),
        *[call("exec_command", cmd=f"head -60 long.txt # {number}") for number in range(num_long)],
        Step(),
    ]
    return await bed.play(directory, steps, lambda desk: codex(desk, compact_at, "mend a.txt"))


@pytest.fixture
def directories(tmp_path: Path) -> tuple[Path, Path]:
    """A repository for each program."""
    for name in ("claude", "codex"):
        (tmp_path / name).mkdir()
    return make_directory(tmp_path / "claude"), make_directory(tmp_path / "codex")


async def test_sessions_in_the_context_of_smollm2(bus: Bus, tmp_path: Path, directories: tuple[Path, Path]) -> None:
    """Claude Code compacts when vLLM refuses its prompt, and ends if that does not help; Codex CLI at a set length."""
    async with serving(bus, await provide_folder(SMOLLM2, print), tmp_path, dtype="auto") as bed:
        session = await play_claude(bed, directories[0], num_long=9)
        assert session.refused["400"] and session.breaks.keys() <= {"compacted"} and bed.engine.num_summaries
        session = await play_codex(bed, directories[1], num_long=5, compact_at=6000)
    num = bed.engine.num_summaries
    # A call that summarises has no tools, so its prompt is rendered anew.
    assert num and not session.refused and session.breaks == {"compacted": num, "template": num}


async def test_sessions_with_tools_in_the_prompt(bus: Bus, tmp_path: Path, directories: tuple[Path, Path]) -> None:
    model = make_model(await provide_folder(SMOLLM2, print), tmp_path / "model", CONTEXT)
    async with serving(bus, model, tmp_path) as bed:
        sessions = [
            await play_claude(bed, directories[0], num_long=0),
            await play_codex(bed, directories[1], num_long=0, compact_at=CONTEXT),
        ]
    for session in sessions:
        assert (len(session.calls), session.num_paths, session.refused["400"]) == (5, 1, 0)
