"""The command line vLLM is started with, and a node that cannot start says why in one sentence."""

import asyncio
import json
import socket
import tempfile
from pathlib import Path
from typing import Any

import pytest

from lightningbus.bus.client import Bus
from lightningbus.common.listeners import AddressInUseError
from lightningbus.inference import node
from lightningbus.inference.engine import vllm_command
from lightningbus.inference.engine.answer_parser import MIDDLEWARE
from lightningbus.inference.engine.base import EngineError
from lightningbus.inference.engine.vllm_command import command, environment, list_parsers
from lightningbus.inference.engine.vllm_engine import VllmEngine
from lightningbus.inference.engine.vllm_server import find_error
from lightningbus.inference.settings import AdapterSettings, InferenceSettings
from lightningbus.schemas.weights.dtypes import DTYPES, Dtype


def test_vllm_listens_on_its_socket_alone_and_gives_the_probabilities_sampled_from(tmp_path: Path) -> None:
    settings = InferenceSettings(
        model_path=tmp_path, host="0.0.0.0", max_model_len=64, cpu_threads=1, vllm_args=["--x"]
    )
    words = command(settings, tmp_path / "socket")
    options = dict(zip(words[4::2], words[5::2], strict=False))
    assert options["--uds"] == str(tmp_path / "socket") and not {"--host", "--port"} & set(words)
    assert options["--logprobs-mode"] == "processed_logprobs"
    assert options["--generation-config"] == "vllm"
    assert options["--max-model-len"] == "64"
    assert words[-1] == "--x"
    parsing = command(settings.model_copy(update={"tool_parser": "hermes", "reasoning_parser": "qwen3"}), tmp_path)
    options = dict(zip(parsing[4::2], parsing[5::2], strict=False))
    assert (options["--tool-call-parser"], options["--reasoning-parser"]) == ("hermes", "qwen3")
    assert options["--middleware"] == MIDDLEWARE and "--middleware" not in words
    assert "--enable-auto-tool-choice" in parsing and "--enable-auto-tool-choice" not in words
    adapted = settings.model_copy(update={"lora": AdapterSettings(rank=9, max_loaded_versions=2)})
    words_adapted = command(adapted, tmp_path)
    options = dict(zip(words_adapted[4::2], words_adapted[5::2], strict=False))
    assert (options["--max-loras"], options["--max-lora-rank"]) == ("3", "16") and "--enable-lora" not in words
    assert "--enable-lora" in words_adapted and "VLLM_ALLOW_RUNTIME_LORA_UPDATING" in environment(adapted, tmp_path)
    reported = environment(settings, tmp_path)
    assert (
        reported["VLLM_NO_USAGE_STATS"] == "1"
        and reported["HF_HUB_OFFLINE"] == "1"
        and reported["OMP_NUM_THREADS"] == "1"
    )


@pytest.mark.parametrize("has_bfloat16", [False, True])
@pytest.mark.parametrize("has_gpu", [False, True])
@pytest.mark.parametrize("stored", DTYPES)
def test_an_engine_never_emulates_a_number_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored: Dtype, has_gpu: bool, has_bfloat16: bool
) -> None:
    """On AVX2 alone, vLLM takes ten times as long in bfloat16 as in float32, which holds the same weights."""
    monkeypatch.setattr(vllm_command, "has_gpu", lambda: has_gpu)
    monkeypatch.setattr(vllm_command, "has_bfloat16", lambda: has_bfloat16)
    (tmp_path / "config.json").write_text(json.dumps({"dtype": stored}))
    settings = InferenceSettings(model_path=tmp_path)
    words = command(settings, tmp_path / "socket")
    keeps = stored == "bfloat16" and has_bfloat16
    assert words[words.index("--dtype") + 1] == ("auto" if has_gpu else stored if keeps else "float32")
    chosen = command(settings.model_copy(update={"dtype": "float16"}), tmp_path / "socket")
    assert chosen[chosen.index("--dtype") + 1] == "float16"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, []),
        ({"tool_parser": "hermes"}, ["tool"]),
        ({"reasoning_parser": "qwen3"}, ["reasoning"]),
        ({"vllm_args": ["--reasoning-parser=qwen3", "--tool_call_parser", "hermes"]}, ["reasoning", "tool"]),
    ],
)
def test_a_node_says_what_its_engine_parses(tmp_path: Path, fields: dict[str, Any], expected: list[str]) -> None:
    assert list_parsers(InferenceSettings(model_path=tmp_path, **fields)) == expected


async def test_a_directory_without_a_model_is_refused(bus: Bus, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"model_path: .* holds no model"):
        await node.run(bus, InferenceSettings(model_path=tmp_path), asyncio.Event())


async def test_a_port_in_use_is_said_before_an_engine_is_started(bus: Bus, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = InferenceSettings(model_path=tmp_path, port=taken.getsockname()[1], work_dir=tmp_path / "work")
        with pytest.raises(
            AddressInUseError, match=r"port: cannot listen on 127\.0\.0\.1:\d+: .* set another port, or 0"
        ):
            await node.run(bus, settings, asyncio.Event())
    assert not (tmp_path / "work" / "vllm.log").exists()


@pytest.mark.long
@pytest.mark.integration
async def test_an_engine_that_cannot_start_gives_its_last_words(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    settings = InferenceSettings(model_path=tmp_path, work_dir=tmp_path / "work", vllm_args=["--no-such-option"])
    async with VllmEngine(settings) as engine:
        with pytest.raises(EngineError, match=r"vLLM ended with \d+: .* \(log: "):
            await engine.start()


async def test_a_directory_for_the_socket_whose_name_is_too_long_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("x" * 100)))
    Path(tempfile.gettempdir()).mkdir()
    with pytest.raises(EngineError, match=r"TMPDIR: .* is too long for a Unix socket"):
        await VllmEngine(InferenceSettings(model_path=tmp_path)).__aenter__()
    assert not list(Path(tempfile.gettempdir()).iterdir())


def test_the_cause_in_vllms_log_is_before_the_error_that_refers_to_it() -> None:
    cause = "ValueError: Available memory on node 0 (0.98/23.54 GiB) is less than requested (1.0 GiB)."
    refers = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
    log = f"INFO ready\n(EngineCore pid=7) ERROR 11-28 06:40 [core.py:1] {cause}\n(APIServer pid=1) {refers}\n"
    assert find_error(log) == cause
    assert find_error(refers) == refers and find_error("INFO ready") == ""


@pytest.mark.parametrize("process", ["", "(APIServer pid=26645) "])
@pytest.mark.parametrize("level", ["DEBUG", "INFO", "WARNING"])
def test_a_warning_in_vllms_log_that_names_an_error_is_not_its_cause(process: str, level: str) -> None:
    warning = (
        f"{process}{level} 11-29 14:01:17 [utils.py:2] This can cause errors like `OSError: Too many open files`. Or"
    )
    assert find_error(f"INFO ready\n{warning}\n") == ""
    assert find_error(f"ValueError: no such model\n{warning}\n") == "ValueError: no such model"
