"""``lightningbus weights export``: versions as model directories, from runs that are up and runs that have stopped."""

import asyncio
import hashlib
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from typer.testing import CliRunner, Result

from lightningbus.api.train_result import TrainResult
from lightningbus.bus.client import Bus
from lightningbus.bus.embedded.nats_server import nats_server
from lightningbus.bus.security.credentials import Credentials
from lightningbus.bus.security.users import create_users
from lightningbus.bus.weights.registry import WeightRegistry
from lightningbus.cli.app import app
from lightningbus.export.model_directory import _find_in_copy
from lightningbus.learner.publishing.publisher import WeightPublisher
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.learner.settings.weights import WeightSettings
from lightningbus.run.errors import UserError
from lightningbus.run.evaluation.evaluation import Evaluation
from lightningbus.run.evaluation.pinned_version import VersionPins
from lightningbus.run.machine.hardware import read_hardware, read_versions
from lightningbus.run.results.agent_code import record_code
from lightningbus.run.results.base_files import compute_digest, record_base_models
from lightningbus.run.results.best_version import find_best
from lightningbus.run.results.results import Results
from lightningbus.run.results.run_record import describe_job, identify_record, write_record
from lightningbus.run.run_directory.directory import RunDirectory
from lightningbus.run.run_directory.discovery import CREDENTIALS_VARIABLE
from lightningbus.run.settings.evaluation import EvalSettings
from lightningbus.run.settings.setting_change import SettingChange
from lightningbus.schemas.weights.delta import fingerprint
from tests.commands import environment
from tests.learner.conftest import tiny_model

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
        self.results = Results(
            run="small", model="policy", model_path=model, settings_sha256="", seed=0, max_steps=3, perfect_reward=1.0,
            hardware=read_hardware(), packages=read_versions(),
        )  # fmt: skip
        run = RunDirectory(directory).create()
        (run.path / "work" / "learner.json").write_text(self.settings.model_dump_json())
        list(create_users(directory / "credentials", tls=False))

    def credentials(self, role: str) -> Credentials:
        """The keys of a role."""
        return Credentials.read(self.directory / "credentials", role)

    def add_evaluation(self, label: str, version: int, mean_reward: float, **fields: Any) -> None:
        """What a training job writes when an evaluation has ended."""
        fields = {"standard_error": 0.1, **fields}
        self.results.add_evaluation(
            Evaluation(
                label=label, version=version, versions={"policy": version}, mean_reward=mean_reward,
                num_tasks=2, rollouts=2, ok=2, seconds=1.0, **fields,
            )
        )  # fmt: skip
        self.results.write(self.directory)

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


def url_of(bus: Bus) -> str:
    """Where a bus is connected to."""
    return f"nats://{bus.nc.connected_url.netloc}"


async def weights_list(url: str) -> Result:
    """``lightningbus weights list``."""
    command = ["weights", "list", "--json", "--bus", url]
    done = await asyncio.to_thread(CliRunner().invoke, app, command)
    assert done.exit_code == 0, (done.output, done.exception)
    return done


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

    assert "version 1 of run small is in" in (await export("--run", run.directory, tmp_path / "newest")).stdout
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
    (request,) = re.findall(r"^curl \S+/v1/completions --json (.+)$", card, re.M)
    assert json.loads(shlex.split(request)[0])["model"] == "small" and "--served-model-name small " in card
    assert "| run | `small` |" in card and "| version | 1 |" in card and str(tmp_path) not in card


async def test_files_beside_the_weights_are_those_of_the_model_that_was_trained(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run was started beside its model, and another project has a model of the same name and shapes."""
    run = Run(tmp_path / "small", model)
    relative = run.settings.model_copy(update={"model_path": Path("model")})
    (run.directory / "work" / "learner.json").write_text(relative.model_dump_json())
    (run.directory / "job.json").write_text(json.dumps({"learner": {"model_path": str(model)}}))
    shutil.copytree(model, tmp_path / "other" / "model")
    (tmp_path / "other" / "model" / "tokenizer.json").write_text("{}")
    async with run.up("learner") as bus:
        weights = run.write(load_file(model / "model.safetensors"))
        await WeightPublisher(bus, run.settings).publish(weights, version=0, epoch=1, step=0)
    monkeypatch.chdir(tmp_path / "other")
    await export("--run", run.directory, "out")
    assert (tmp_path / "other" / "out" / "tokenizer.json").read_bytes() == (model / "tokenizer.json").read_bytes()
    assert {path.stat().st_mode & 0o777 for path in Path("out").iterdir()} == {0o644}, "a server is another user"
    refused = await export("--run", run.directory, 0, code=2)
    assert "give a version and a directory" in refused.stderr
    result = TrainResult(run.directory, {}, [])
    assert result.export("from-python") == 0, "in an event loop, as in a notebook"
    assert Path("from-python", "model.safetensors").read_bytes() == Path("out", "model.safetensors").read_bytes()
    moved = TrainResult(run.directory, {}, [], identify_record(run.directory))
    run.directory.rename(tmp_path / "small-1")
    shutil.copytree(tmp_path / "small-1", run.directory)  # a new run of the name
    (run.directory / "bus").rename(tmp_path / "gone")
    assert moved.export("of-the-moved") == 0
    shutil.rmtree(tmp_path / "small-1")
    with pytest.raises(UserError, match="the run of this result is gone"):
        moved.export("of-nothing")
    (tmp_path / "gone").rename(run.directory / "bus")
    with pytest.raises(UserError, match=r"version 7"):
        await result.aexport("other", 7)
    with pytest.raises(UserError, match="no held-out reward of model 'policy' is known here"):
        await result.aexport("other", best=True)
    with pytest.raises(UserError, match="give version= or best=True, not both"):
        result.export("other", 0, best=True)
    assert not Path("other").exists()
    shutil.copytree(model, run.directory / "work" / "model")  # as the demo's, of a run that was copied
    recorded = {"learner": {"model_path": str(tmp_path / "original" / "work" / "model")}}
    (run.directory / "job.json").write_text(json.dumps(recorded))
    await export("--run", run.directory, "copied")
    assert Path("copied", "tokenizer.json").read_bytes() == (model / "tokenizer.json").read_bytes()


@pytest.mark.long
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
    card = (tmp_path / "merged" / "README.md").read_text()
    assert f"| xxh3-128 of the weights | `{fingerprint(tmp_path / 'merged' / 'model.safetensors')}` |" in card
    adapter_digest = hashlib.sha256(run.files[1].read_bytes()).hexdigest()
    assert f"with the version's adapters merged (SHA-256 `{adapter_digest}`)" in card
    of_adapter = (tmp_path / "adapter" / "README.md").read_text()
    assert f"| SHA-256 of the adapters | `{adapter_digest}` |" in of_adapter and "merged" not in of_adapter
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
    assert config["base_model_name_or_path"] == model.name
    named = tmp_path / "named"
    await export("--run", run.directory, named, "--adapter", "--base-name", "somebody/small-model")
    config = json.loads((named / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "somebody/small-model"
    card = (named / "README.md").read_text()
    assert "base_model: somebody/small-model\nbase_model_relation: adapter\n" in card
    assert [path for path in named.iterdir() if str(tmp_path) in path.read_bytes().decode(errors="replace")] == []
    program = re.findall(r"```python\n(.*?)```", card, re.S)[0]
    run_program(program.replace('"somebody/small-model"', repr(str(model))), named)


async def test_the_best_version_keeps_its_files_and_is_exported_when_the_run_has_ended(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Version 1 is the best of those that were evaluated; of the others the last two have their files."""
    run = Run(tmp_path / "small", model)
    run.settings = run.settings.model_copy(
        update={"keep_weight_versions": 1, "weights": WeightSettings(full_interval=1)}
    )
    weights = load_file(model / "model.safetensors")
    async with run.up("learner") as bus, Bus.connect(url_of(bus), credentials=run.credentials("admin")) as admin:
        publisher, pins = WeightPublisher(bus, run.settings), VersionPins(admin, "small", ["policy"])
        rewards = [0.1, 0.7, 0.6, 0.5, 0.2]
        for version, reward in enumerate(rewards):
            weights["model.norm.weight"] = torch.full_like(weights["model.norm.weight"], 1 + version)
            await publisher.publish(run.write(weights), version=version, epoch=1, step=version)
            run.add_evaluation("sampled", version, reward)
            run.add_evaluation("hard-greedy", version, 0.5, standard_error=0.0, reward="both")
            best = find_best(run.results.evaluations)
            assert best is not None
            await pins.keep("policy", best.version, "the best so far")
        monkeypatch.setenv(CREDENTIALS_VARIABLE, str(run.directory / "credentials" / "client"))  # may look on, no more
        rows = json.loads((await weights_list(url_of(bus))).stdout)
        assert "reward" not in rows[0], "an address says nothing of a run's directory"
    listed = await asyncio.to_thread(
        CliRunner().invoke, app, ["weights", "list", "--json", "--run", str(run.directory)]
    )
    of_version = {row["version"]: (row["reward"], row["best"]) for row in json.loads(listed.stdout)}
    assert {row["evaluation"] for row in json.loads(listed.stdout)} == {"sampled"}
    assert of_version == {4: (0.2, ""), 3: (0.5, ""), 2: (0.6, ""), 1: (0.7, "yes"), 0: (0.1, "")}
    assert {row["version"]: row["exportable"] for row in rows} == {
        4: "yes", 3: "yes", 2: "no: its files have expired", 1: "yes", 0: "no: its files have expired",
    }  # fmt: skip
    assert "version 1 of run small is in" in (await export("--run", run.directory, "--best", tmp_path / "best")).stdout
    assert (
        "| held-out reward, sampled | 0.7000 (95 % interval 0.5040 to 0.8960, 2 tasks) |"
        in (tmp_path / "best" / "README.md").read_text()
    )
    assert (tmp_path / "best" / "model.safetensors").read_bytes() == run.files[1].read_bytes()
    card = (tmp_path / "best" / "README.md").read_text()
    assert "| held-out reward, hard-greedy, by `both` | 0.5000 (2 tasks) |" in card
    assert "| 1 | hard-greedy, by `both` | 0.5000 | 0.0000 |" in card
    assert "| 1 | sampled | 0.7000 |" in card and "mean reward" in card and "accuracy" not in card
    refused = await export("--run", run.directory, 2, tmp_path / "gone", code=2)
    assert "version 2 cannot be exported: " in refused.stderr and "keep_weight_versions" in refused.stderr
    refused = await export("--run", run.directory, 2, tmp_path / "gone", "--best", code=2)
    assert "give a version or --best, not both" in refused.stderr and not (tmp_path / "gone").exists()
    async with run.up("admin") as bus:
        await WeightRegistry(bus, "policy").append_decision("revoked", 1, actor="test", reason="it swears")
    refused = await export("--run", run.directory, tmp_path / "gone", "--best", code=2)
    assert "version 1 is revoked: name another, see `lightningbus weights list` for rewards, or give --force" in (
        refused.stderr
    )


async def test_a_card_has_what_is_on_record_and_a_changed_base_is_refused(
    tmp_path: Path, model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    base = tmp_path / "base"
    shutil.copytree(model, base)
    (tmp_path / "tasks.jsonl").write_text(json.dumps({"id": "a", "input": {"question": 'why "so" {x}?'}}) + "\n")
    run = Run(tmp_path / "small", base)
    run.settings = run.settings.model_copy(update={"tasks": tmp_path / "tasks.jsonl"})
    (run.directory / "work" / "learner.json").write_text(run.settings.model_dump_json())
    record_base_models(run.directory, [run.settings])
    write_record(run.directory, describe_job([run.settings], EvalSettings()))
    code = {"agent.py": "1", "helper.py": "2"}
    record_code(run.directory, code)
    runner = {"command": ["/home/somebody/agent.sh", "--fast"]}
    (run.directory / "work" / "runner-0.json").write_text(json.dumps(runner))
    async with run.up("learner") as bus:
        weights = run.write(load_file(base / "model.safetensors"))
        publisher = WeightPublisher(bus, run.settings)
        for version, step in ((0, 0), (1, 9)):
            await publisher.publish(weights, version=version, epoch=1, step=step)
    run.results.rollouts = 1234
    rate, lower = ({"actor": {"optim": {"lr": lr}}} for lr in (1e-5, 1e-6))
    now = datetime.now(UTC)
    run.results.changes = [
        SettingChange(model=model, first_step=7, learner=lower, before=rate, reason="", changed_at=now)
        for model in ("policy", "other")
    ]
    run.add_evaluation("greedy", 0, 0.5)
    best = await export("--run", run.directory, "--best", tmp_path / "best")
    assert (
        "version 0 of run small is in" in best.stdout and "no trained version has a higher greedy reward" in caplog.text
    )
    card = (tmp_path / "best" / "README.md").read_text()
    assert (
        json.dumps('why "so" {x}?') in card
        and "| algorithm | grpo |" in card
        and "| rollouts of the run | 1,234 |" in card
    )
    change = '- From step 7: `{"actor": {"optim": {"lr": 1e-06}}}`; before: `{"actor": {"optim": {"lr": 1e-05}}}`'
    in_settings = re.compile('^ +"lr": 1e-05', re.M)
    assert change not in card and in_settings.search(card), "this version was trained before"
    await export("--run", run.directory, 1, tmp_path / "later")
    later = (tmp_path / "later" / "README.md").read_text()
    assert (
        "| selected | as the best of 1 evaluated version by greedy: its own figure is optimistic; no trained" in card
        and "| selected |" not in later
    )
    assert later.count(change) == 1 and not in_settings.search(later)
    digest = re.findall(r"SHA-256 of the base model's file list \| `([0-9a-f]{64})`", card)
    assert len(digest) == 1 and str(tmp_path) not in card and "as training started" not in card
    assert (
        re.search(r"SHA-256 of the training tasks \(ids, inputs and labels\) \| `[0-9a-f]{64}`", card)
        and "the held-out tasks" not in card
    )
    assert f"| SHA-256 of the list of the agents' code | `{compute_digest(code)}` |" in card
    assert "| seed | 0 |" in card and "| agent | `agent.sh --fast` |" in card
    (base / "tokenizer.json").write_text("{}")
    refused = await export("--run", run.directory, tmp_path / "other", code=2)
    assert "is not the model that training started from: tokenizer.json changed since" in refused.stderr
    assert (
        "version 1 of run small is in"
        in (await export("--run", run.directory, tmp_path / "kept", "--base-model", model)).stdout
    )
    await export("--run", run.directory, tmp_path / "forced", "--force")
    (tmp_path / "tasks.jsonl").write_text('{"id": "a", "input": "of another project"}\n')
    await export("--run", run.directory, tmp_path / "elsewhere", "--force")
    elsewhere = (tmp_path / "elsewhere" / "README.md").read_text()
    assert "of another project" not in elsewhere and "Its question is any: the tasks are not here." in elsewhere
    forced = (tmp_path / "forced" / "README.md").read_text()
    assert f"| the same as training started | `{digest[0]}`: the files changed since |" in forced
    assert f"file list | `{digest[0]}`" not in forced and re.search(r"file list \| `[0-9a-f]{64}`", forced)


async def test_the_best_version_of_a_run_without_evaluations_is_a_sentence(tmp_path: Path, model: Path) -> None:
    run = Run(tmp_path / "small", model)
    async with run.up("learner") as bus:
        await WeightPublisher(bus, run.settings).publish(
            run.write(load_file(model / "model.safetensors")), version=0, epoch=1, step=0
        )
    refused = await export("--run", run.directory, "--best", tmp_path / "best", code=2)
    assert "no held-out reward of model 'policy' is known here" in refused.stderr


@pytest.mark.long
async def test_a_card_has_base_licence_data_type_versions_and_a_program_that_runs(tmp_path: Path) -> None:
    base = tmp_path / "models--somebody--small" / "snapshots" / "0123"
    base.mkdir(parents=True)
    tiny_model(base, vocab_size=320)
    (base / "README.md").write_text("---\nlicense: apache-2.0\n---\n# A model\n")
    run = Run(tmp_path / "small", base)
    async with run.up("learner") as bus:
        weights = {name: tensor.bfloat16() for name, tensor in load_file(base / "model.safetensors").items()}
        await WeightPublisher(bus, run.settings).publish(run.write(weights), version=0, epoch=1, step=0)
    run.add_evaluation("greedy", 0, 0.25)
    directory = tmp_path / "exported"
    await export("--run", run.directory, directory)
    card = (directory / "README.md").read_text()
    metadata = yaml.safe_load(card.split("---\n")[1])
    assert metadata["base_model"] == "somebody/small" and metadata["license"] == "apache-2.0"
    assert metadata["base_model_relation"] == "finetune" and metadata["library_name"] == "transformers"
    for row in ("| base model | `somebody/small` |", "| licence | apache-2.0 |", "| data type | bfloat16 |"):
        assert row in card
    for name, number in read_versions().items():
        assert f"{name} {number}" in card
    assert str(tmp_path) not in card and "vllm serve" not in card
    assert "the model `somebody/small` before the first training step" in card and "was not evaluated" not in card
    (program,) = re.findall(r"```python\n(.*?)```", card, re.S)
    run_program(program, directory)


def test_the_model_of_a_project_that_was_moved_is_found_beside_its_runs(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").touch()
    run, former = tmp_path / "runs" / "first", Path("/nowhere/first/model")
    assert _find_in_copy(run, former) == tmp_path / "model"
    assert _find_in_copy(run, Path("/nowhere/other")) == Path("/nowhere/other")


def run_program(program: str, directory: Path) -> None:
    """Run a program of a card, in its directory."""
    env = {**environment(), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=directory,
        env=env,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0 and done.stdout.strip(), done.stderr[-3000:]


async def test_a_run_that_is_not_there_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "there is no run here" in (await export("model", code=2)).stderr
    assert "there is no run 'nosuch'" in (await export("model", "--run", "nosuch", code=2)).stderr
    assert "give a version and a directory" in (await export("three", "model", code=2)).stderr
