"""``lightningbus weights export``: versions as model directories, from runs that are up and runs that have stopped."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from typer.testing import CliRunner, Result

from bus.client import Bus
from bus.embedded.nats_server import nats_server
from bus.security.credentials import Credentials
from bus.security.users import create_users
from bus.weights.registry import WeightRegistry
from learner.publishing.publisher import WeightPublisher
from learner.settings.learner import LearnerSettings
from lightningbus.cli.app import app
from lightningbus.run.run_directory import RunDirectory

pytestmark = pytest.mark.integration
PROMPT = torch.tensor([[3, 1, 4, 1, 5]])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory, as training starts from."""
    path = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
            num_key_value_heads=2, tie_word_embeddings=True,
        )
    ).save_pretrained(path)  # fmt: skip
    words = WordLevel({f"w{number}": number for number in range(32)}, unk_token="w0")
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words), unk_token="w0").save_pretrained(path)
    return path


class Run:
    """A run's directory with its bus; what is published in it is kept to be compared."""

    def __init__(self, directory: Path, model: Path) -> None:
        self.directory, self.files = directory, list[Path]()
        self.settings = LearnerSettings(model_path=model, run="small", checkpoint_dir=directory / "checkpoints")
        run = RunDirectory(directory).create()
        (run.path / "work" / "learner.json").write_text(self.settings.model_dump_json())
        list(create_users(directory / "credentials", tls=False))

    @asynccontextmanager
    async def up(self, role: str) -> AsyncIterator[Bus]:
        """The run's bus while it is up."""
        users = self.directory / "credentials"
        async with nats_server(self.directory / "bus", users=users) as server:
            async with Bus.connect(server.url, credentials=Credentials.read(users, "admin")) as bus:
                await bus.provision()
            async with Bus.connect(server.url, credentials=Credentials.read(users, role)) as bus:
                yield bus

    def write(self, tensors: dict[str, Any], metadata: dict[str, str] | None = None) -> Path:
        """Weights as the learner writes them."""
        path = self.directory / f"written-{len(self.files)}.safetensors"
        save_file(tensors, path, metadata)
        self.files.append(path)
        return path


async def export(*arguments: object, code: int = 0) -> Result:
    """``lightningbus weights export …`` to its end."""
    done = await asyncio.to_thread(CliRunner().invoke, app, ["weights", "export", *map(str, arguments)])
    assert done.exit_code == code, (done.output, done.exception)
    return done


async def test_a_stopped_run_gives_its_versions_to_the_byte(tmp_path: Path, model: Path) -> None:
    run = Run(tmp_path / "small", model)
    weights = load_file(model / "model.safetensors")
    async with run.up("learner") as bus:
        publisher = WeightPublisher(bus, run.settings)
        for version in range(3):
            name = "model.embed_tokens.weight"
            weights[name] = weights[name].clone()
            weights[name][version] += 1
            await publisher.publish(run.write(weights), version=version, epoch=1, step=version)
        assert publisher.last is not None and publisher.last.kind == "delta"
    async with run.up("admin") as bus:
        await WeightRegistry(bus, "policy").append_decision("revoked", 2, actor="test", reason="it swears")

    assert "version 1 is in" in (await export("--run", run.directory, tmp_path / "newest")).stdout
    assert (tmp_path / "newest" / "model.safetensors").read_bytes() == run.files[1].read_bytes()
    refused = await export("--run", run.directory, 2, tmp_path / "revoked", code=2)
    assert "version 2 is revoked: give --force" in refused.stderr and not (tmp_path / "revoked").exists()
    await export("--run", run.directory, 2, tmp_path / "revoked", "--force")
    assert (tmp_path / "revoked" / "model.safetensors").read_bytes() == run.files[2].read_bytes()
    assert "is not empty" in (await export("--run", run.directory, 2, tmp_path / "revoked", "--force", code=2)).stderr
    assert "has no version 9" in (await export("--run", run.directory, 9, tmp_path / "none", code=2)).stderr
    assert "has no adapters" in (await export("--run", run.directory, tmp_path / "none", "--adapter", code=2)).stderr
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")], "what failed left nothing"

    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "newest")
    torch.testing.assert_close(loaded.lm_head.weight, load_file(run.files[1])["model.embed_tokens.weight"])
    assert AutoTokenizer.from_pretrained(tmp_path / "newest").convert_tokens_to_ids("w7") == 7
    card = (tmp_path / "newest" / "README.md").read_text()
    assert "| run | `small` |" in card and "| version | 1 |" in card and str(tmp_path) not in card


async def test_adapters_are_merged_or_exported_alone(tmp_path: Path, model: Path) -> None:
    from peft import PeftModel

    run = Run(tmp_path / "small", model)
    base = load_file(model / "model.safetensors")
    query = "model.layers.0.self_attn.q_proj"
    adapters = {
        f"base_model.model.{query}.lora_A.weight": torch.randn(2, 16),
        f"base_model.model.{query}.lora_B.weight": torch.randn(16, 2),
    }
    async with run.up("learner") as bus:
        publisher = WeightPublisher(bus, run.settings)
        await publisher.publish_base(run.write(base))
        await publisher.publish(run.write(adapters, {"scale": "0.5"}), version=0, epoch=1, step=0)

    await export("--run", run.directory, tmp_path / "merged")
    await export("--run", run.directory, tmp_path / "adapter", "--adapter")
    merged = load_file(tmp_path / "merged" / "model.safetensors")
    expected = dict(base)
    factors = [adapters[f"base_model.model.{query}.lora_{name}.weight"] for name in "BA"]
    expected[f"{query}.weight"] = base[f"{query}.weight"] + 0.5 * factors[0] @ factors[1]
    assert merged.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(merged[name], tensor)
    assert (tmp_path / "adapter" / "adapter_model.safetensors").read_bytes() == run.files[1].read_bytes()
    with_adapter = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model), str(tmp_path / "adapter"))
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    torch.testing.assert_close(with_adapter(PROMPT).logits, whole(PROMPT).logits)
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(model)


async def test_a_run_that_is_not_there_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "there is no run here" in (await export("model", code=2)).stderr
    assert "there is no run 'nosuch'" in (await export("model", "--run", "nosuch", code=2)).stderr
    assert "give a version and a directory" in (await export("three", "model", code=2)).stderr
