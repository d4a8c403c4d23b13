"""The whole loop in small, with every part real; what is asserted is what ClickHouse holds.

The tests build on each other, in the order they stand here: they share one run, and its versions only ever grow.
"""

import asyncio
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp
import msgpack
import numpy as np
import psutil
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from lightningbus.bus.client import Bus
from lightningbus.bus.security.credentials import Credentials
from lightningbus.bus.security.secrets import INFERENCE_API_KEY, bearer_header, read_key
from lightningbus.learner.publishing.delta_chain import blob_name
from lightningbus.schemas import ids as identity
from lightningbus.schemas import subjects
from lightningbus.schemas.codec import schema_of
from lightningbus.schemas.fleet import Heartbeat
from lightningbus.schemas.spans import SpanBatch
from lightningbus.schemas.step_metrics import find_undeclared
from lightningbus.schemas.tasks import Task
from lightningbus.schemas.weights.events import WeightManifest
from lightningbus.tasks.task_loading import load_tasks
from tests.e2e.conftest import CALCULATOR, COLLECTORS_KEY, COMPILED, Loop, write_tasks
from tests.polling import HANG_SECONDS, until

pytestmark = pytest.mark.timeout(420)
STEPS, GROUPS, SAMPLES, STALENESS = 3, 2, 4, 1
SERVED = STEPS + 4
"""The version the node has after what is published here by hand: whole weights, then adapters."""


def learner_settings(loop: Loop, **changes: object) -> Path:
    tasks = loop.directory / "tasks.jsonl"
    if not tasks.exists():
        write_tasks(tasks, 6)
    settings = {
        "run": "small",
        "model_path": str(loop.directory / "model"),
        "tasks": str(tasks),
        "group_size": SAMPLES,
        "groups_per_step": GROUPS,
        "max_steps": STEPS,
        "max_staleness": STALENESS,
        "cpu_threads": 1,
        "checkpoint_dir": str(loop.directory / "checkpoints"),
        "checkpoint_interval": 1,
        "keep_last_checkpoints": 20,
        # Rewards of this model are mostly 0: something has to move the weights.
        "actor": {"optim": {"lr": 1e-3}, "entropy_coeff": 0.01, "use_kl_loss": True},
        **changes,
    }
    path = loop.directory / "learner.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


async def node_at(bus: Bus, version: int) -> Heartbeat:
    """Wait for an inference node that serves a version."""
    async with bus.fleet("inference") as nodes, asyncio.timeout(HANG_SECONDS):
        while True:
            for node in nodes.members():
                if node.version == version:
                    return node
            await nodes.wait_for_change()


def test_learner_trains_on_what_the_agents_did(loop: Loop) -> None:
    loop.run("learner", "--settings", learner_settings(loop))

    loop.until("SELECT count() FROM training_steps WHERE run_id = 'small'", STEPS)
    loop.until("SELECT count() FROM check_unfinished_rollouts WHERE run_id = 'small'", 0)
    versions = loop.rows("SELECT version FROM weight_versions WHERE run_id = 'small' ORDER BY version")
    assert versions == [(0,), (1,), (2,), (3,)]
    assert loop.fetch_value("SELECT count() FROM tasks WHERE run_id = 'small'") == STEPS * GROUPS * SAMPLES
    assert (
        loop.rows("SELECT rollout_id, attempt, outcome, error FROM rollouts WHERE run_id = 'small' AND outcome != 'ok'")
        == []
    )
    assert loop.fetch_value("SELECT count() FROM rollouts WHERE run_id = 'small'") == STEPS * GROUPS * SAMPLES
    assert (
        loop.fetch_value("SELECT uniqExact(rollout_id) FROM training_rollouts WHERE run_id = 'small'")
        == STEPS * GROUPS * SAMPLES
    )
    assert loop.fetch_value("SELECT count() FROM check_duplicate_training") == 0
    assert loop.fetch_value("SELECT countIf(NOT trained AND exclusion_reason = '') FROM training_rollouts") == 0
    assert loop.fetch_value("SELECT countIf(trained) FROM training_rollouts WHERE run_id = 'small'") > 0


def test_no_answer_waits_for_a_compiler(loop: Loop) -> None:
    compiled = [path.stat().st_mtime for path in (loop.directory / COMPILED).rglob("*.so")]
    applied = loop.fetch_value("SELECT toFloat64(min(activated_at)) FROM raw_weight_activations")
    assert compiled and max(compiled) < applied


async def test_what_vllm_measures_is_seen_through_its_node(loop: Loop) -> None:
    async with loop.connected() as bus:
        node = await node_at(bus, STEPS)
    async with aiohttp.ClientSession() as http, http.get(f"{node.address}/metrics", headers=key_of(loop)) as answer:
        families = {family.name: family for family in text_string_to_metric_families(await answer.text())}
    sampled = loop.fetch_value("SELECT sum(length(response_ids)) FROM completions WHERE run_id = 'small'")
    assert sum(sample.value for sample in families["vllm:generation_tokens"].samples) >= sampled > 0


def test_every_token_has_its_version_and_probability(loop: Loop) -> None:
    calls = loop.rows(
        "SELECT rollout_id, prompt_ids, response_ids, logprobs, token_versions FROM completions INNER JOIN prompts "
        "USING (run_id, rollout_id, execution_id, call) WHERE run_id = 'small'"
    )
    assert len(calls) == 2 * STEPS * GROUPS * SAMPLES  # the agent asks twice
    for _, prompt, response, logprobs, versions in calls:
        assert prompt and 0 < len(response) == len(logprobs) == len(versions)
        assert all(np.isfinite(logprobs)) and max(logprobs) <= 0
        assert set(versions) <= {0, 1, 2, 3}
    assert loop.fetch_value("SELECT max(max_staleness) FROM staleness WHERE run_id = 'small'") <= STALENESS
    assert loop.fetch_value("SELECT min(mean_staleness) FROM staleness WHERE run_id = 'small'") >= 0


def test_reward_by_version_counts_every_rollout_once(loop: Loop) -> None:
    assert (
        loop.fetch_value("SELECT sum(rollouts) FROM reward_by_version WHERE run_id = 'small'")
        == STEPS * GROUPS * SAMPLES
    )
    exact = loop.fetch_value("SELECT avg(reward) FROM rollouts WHERE run_id = 'small'")
    assert loop.fetch_value(
        "SELECT sum(mean_reward * rollouts) / sum(rollouts) FROM reward_by_version WHERE run_id = 'small'"
    ) == pytest.approx(exact)


def test_one_rollout_is_one_trace_from_publish_to_training(loop: Loop) -> None:
    rollout = loop.fetch_value(
        "SELECT any(rollout_id) FROM training_rollouts WHERE run_id = 'small' AND trained AND rollout_id IN "
        "(SELECT rollout_id FROM attempts WHERE run_id = 'small' GROUP BY rollout_id HAVING count() = 1)"
    )  # a machine that is busy may have tried others again, which is in their traces
    spans = loop.rows(f"SELECT trace_id, span_id, parent_span_id, name FROM spans WHERE rollout_id = '{rollout}'")
    assert {trace for trace, *_ in spans} == {identity.trace_id(rollout)}
    by_id = {span: (parent, name) for _, span, parent, name in spans}
    assert sorted(name for _, name in by_id.values()) == sorted(
        ["send lb.task.train.default", "invoke_agent default", "chat policy", "chat policy", "train policy"]
    )
    roots = [name for parent, name in by_id.values() if parent not in by_id]
    assert roots == ["send lb.task.train.default"]


def test_every_role_exports_its_own_traces_and_a_rollout_is_one_of_them(loop: Loop) -> None:
    until(lambda: bool(loop.collector.of("lightningbus-store", "ack")), True)
    seen = {span.span_id: span for span in list(loop.collector.spans)}
    roles = {"lightningbus-runner", "lightningbus-store", "lightningbus-learner", "lightningbus-inference"}
    assert {item.service for item in seen.values()} == roles, "neither vLLM's nor an agent's"

    def parents(service: str, name: str) -> set[str]:
        spans = loop.collector.of(f"lightningbus-{service}", name)
        assert spans, (service, name)
        return {seen[item.parent].name if item.parent in seen else "" for item in spans}

    assert parents("learner", "wait") == parents("learner", "train") == parents("learner", "publish") == {"step"}
    assert parents("store", "insert") == parents("store", "ack") == parents("store", "collect") == {"batch"}
    assert parents("inference", "fetch") == parents("inference", "swap") == {"version"}
    assert parents("inference", "POST") == {"chat policy"} and parents("runner", "chat") == {"attempt default"}
    rollouts = dict(loop.rows("SELECT rollout_id, trace_id FROM rollouts WHERE run_id = 'small'"))
    tried = [
        item
        for item in loop.collector.of("lightningbus-runner", "attempt")
        if item.attributes["lightningbus.run"] == "small"
    ]
    assert {item.attributes["lightningbus.rollout.id"]: item.trace_id for item in tried} == rollouts
    assert all(item.parent == identity.publish_span_id(item.attributes["lightningbus.rollout.id"]) for item in tried)
    keys = [COLLECTORS_KEY, read_key(loop.access / "inference" / INFERENCE_API_KEY)]
    assert not any(key.encode() in loop.collector.raw for key in keys)


def test_learner_goes_on_from_its_checkpoint(loop: Loop) -> None:
    loop.run("learner", "--settings", learner_settings(loop, max_steps=STEPS + 2))

    loop.until("SELECT max(step) FROM training_steps WHERE run_id = 'small'", STEPS + 2)
    loop.until("SELECT count() FROM check_unfinished_rollouts WHERE run_id = 'small'", 0)
    assert loop.fetch_value("SELECT max(version) FROM weight_versions WHERE run_id = 'small'") == STEPS + 2
    assert loop.fetch_value("SELECT count() FROM check_duplicate_training") == 0
    assert loop.fetch_value("SELECT count() FROM rollouts WHERE run_id = 'small'") == (STEPS + 2) * GROUPS * SAMPLES


def test_learner_without_the_checkpoint_refuses(loop: Loop) -> None:
    settings = learner_settings(loop, checkpoint_dir=str(loop.directory / "elsewhere"))
    done = loop.run("learner", "--settings", settings, check=False)
    assert done.returncode == 2
    assert "has version 5 on this bus" in done.stderr


def test_a_step_is_made_again_to_the_bit(loop: Loop) -> None:
    """From ClickHouse by its ids, and from the checkpoint before it: same rows, same advantages, same loss."""
    arguments = ["--run", "small", "--checkpoints", loop.directory / "checkpoints", "--json"]
    for step in (1, STEPS + 1, STEPS + 2):  # the second was trained by a learner that had started again
        (actual,) = json.loads(loop.run("steps", "replay", "--step", step, *arguments).stdout)
        text = "batch_sha256, metrics['actor/loss'], metrics['actor/grad_norm']"
        recorded = loop.rows(f"SELECT {text} FROM training_steps WHERE step = {step}")
        assert [(actual["batch_sha256"], actual["loss"], actual["grad_norm"])] == recorded
        assert actual["same_batch"] and actual["same_loss"] and actual["tokens"] > 0
    assert loop.fetch_value("SELECT max(metrics['actor/grad_norm']) FROM training_steps WHERE run_id = 'small'") > 0
    names = loop.rows("SELECT DISTINCT arrayJoin(mapKeys(metrics)) FROM training_steps")
    assert names and find_undeclared(name for (name,) in names) == []
    idle_share = loop.fetch_value(
        "SELECT avg(metrics['learner/idle_share']) FROM training_steps WHERE run_id = 'small'"
    )
    assert 0 < idle_share < 1
    missing = loop.run("steps", "replay", "--step", 99, *arguments, check=False)
    assert missing.returncode == 2 and "step 99 of run 'small' is not on record" in missing.stderr


def test_a_run_is_trained_again_offline_and_its_best_rollouts_are_a_data_set(loop: Loop) -> None:
    from pyarrow import parquet
    from safetensors.torch import load_file

    offline = loop.directory / "offline"
    done = loop.run("steps", "replay", "--run", "small", "--step", 1, "--last", 2, "--train", offline, "--json")
    losses = loop.rows("SELECT metrics['actor/loss'] FROM training_steps WHERE step <= 2 ORDER BY step")
    assert [(row["loss"],) for row in json.loads(done.stdout)] == losses
    (checkpoint,) = (loop.directory / "checkpoints").glob("step-000002-*")
    actual, expected = (load_file(path / "weights.safetensors") for path in (offline, checkpoint))
    assert all(np.array_equal(actual[name], expected[name]) for name in expected), "the run's own weights"
    loop.run("rollouts", "export", loop.directory / "best.jsonl", "--run", "small")
    lines = [json.loads(line) for line in (loop.directory / "best.jsonl").read_text().splitlines()]
    tasks = loop.fetch_value("SELECT uniqExact(task_id) FROM rollouts WHERE run_id = 'small'")
    assert {line["messages"][-1]["role"] for line in lines} == {"assistant"}
    assert len({line["rollout"] for line in lines}) == tasks
    loop.run("rollouts", "export", loop.directory / "best.parquet", "--run", "small", "--min-reward", 0.5)
    table = parquet.read_table(loop.directory / "best.parquet")
    assert min(table["reward"].to_pylist(), default=1.0) >= 0.5
    query = "SELECT execution_id FROM rollouts WHERE run_id = 'small' AND outcome = 'ok' ORDER BY rollout_id LIMIT 3"
    loop.run("rollouts", "export", loop.directory / "three.parquet", "--run", "small", "--query", query)
    assert len(set(parquet.read_table(loop.directory / "three.parquet")["rollout"].to_pylist())) == 3
    loop.run("rollouts", "export", loop.directory / "states.jsonl", "--run", "small", "--query", query, "--prompts")
    states = load_tasks(loop.directory / "states.jsonl")
    calls = f"SELECT prompt_ids FROM prompts WHERE execution_id IN ({query})"
    assert sorted(state.input["prompt_ids"] for state in states) == sorted(list(row[0]) for row in loop.rows(calls))
    wrong = loop.run(
        "rollouts", "export", loop.directory / "no.parquet", "--run", "small", "--query", "SELECT 1", check=False
    )
    assert wrong.returncode == 2 and "select the column execution_id" in wrong.stderr
    bad = loop.run("rollouts", "export", loop.directory / "best.csv", check=False)
    assert bad.returncode == 2 and "must end in .jsonl" in bad.stderr


async def publish_weights(loop: Loop, version: int, tensors: dict[str, Any], **fields: Any) -> Heartbeat:
    """Weights as a version of the model; returns the node once it serves them."""
    from safetensors.torch import save_file

    path = loop.directory / f"published-{version}.safetensors"
    save_file(tensors, path, fields.pop("metadata", None))
    access = Credentials.read(loop.directory / "runs" / "test" / "credentials", "learner")
    async with Bus.connect(loop.bus, credentials=access) as bus:
        last = await bus.get_last(subjects.WEIGHTS, subjects.weights("policy"), WeightManifest)
        assert last is not None
        name = blob_name("policy", version, last[0].epoch)
        blob = await bus.object_store.put(subjects.WEIGHT_BUCKET, name, path)
        base = [
            await bus.object_store.put(subjects.WEIGHT_BUCKET, "policy-base", item) for item in fields.pop("base", ())
        ]
        of_learner = {"run_id": "small", "model": "policy", "epoch": last[0].epoch, "step": 6, "created_at_ns": 1}
        manifest = WeightManifest(version=version, blobs=(*base, blob), **of_learner, **fields)
        await bus.publish(subjects.weights("policy"), manifest, msg_id=f"w{version}", expect_last=last[1])
        return await node_at(bus, version)


def key_of(loop: Loop) -> dict[str, str]:
    """The header a node asks for."""
    return bearer_header(read_key(loop.access / "inference" / INFERENCE_API_KEY))


async def sampled(
    loop: Loop, node: Heartbeat, route: str, **body: Any
) -> tuple[list[int], list[int], list[float], set[int]]:
    """Prompt, answer, log-probabilities and versions of one model call, as a node streams them."""
    request = {
        "model": "policy",
        "max_tokens": 24,
        "ignore_eos": True,
        "stream": True,
        "return_token_ids": True,
        **body,
    }
    address = f"{node.address}/v1/{route}"
    async with aiohttp.ClientSession() as http, http.post(address, json=request, headers=key_of(loop)) as answer:
        text = await answer.text()
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    choices = [event["choices"][0] for event in events if event["choices"]]
    ids = [id for choice in choices for id in choice.get("token_ids") or ()]
    reported = [choice["logprobs"] for choice in choices if choice.get("logprobs")]
    logprobs = [item for output in reported for item in output.get("token_logprobs", ())]
    logprobs += [item["logprob"] for output in reported for item in output.get("content") or ()]
    (prompt,) = [part for part in (holder.get("prompt_token_ids") for holder in (*events, *choices)) if part]
    return prompt, ids, logprobs, {event["weight_version"] for event in events}


def moved(loop: Loop) -> dict[str, Any]:
    """Weights that are nobody's: the learner's with noise."""
    import torch
    from safetensors.torch import load_file

    weights = load_file(loop.directory / "checkpoints" / "latest" / "weights.safetensors")
    torch.manual_seed(0)
    return {name: tensor + 0.05 * torch.randn_like(tensor) for name, tensor in weights.items()}


async def test_engine_and_learner_agree_on_every_token(loop: Loop) -> None:
    """The same version, the tied head included: text and chat, greedy and sampled, at any temperature.

    With top-p the engine's probabilities are of what was left to choose from: at most 1 / top_p larger.
    """
    from array import array

    from msgspec.structs import replace
    from safetensors.torch import save_file

    from lightningbus.learner.settings.learner import LearnerSettings
    from lightningbus.learner.training.verl_trainer import VerlTrainer
    from lightningbus.learner.transitions.sequences import SequenceConfig, build_sequences
    from lightningbus.learner.transitions.transitions import build_transitions
    from tests.factories import model_call

    version, weights = STEPS + 3, moved(loop)
    node = await publish_weights(loop, version, weights)
    directory = loop.directory / "moved"
    shutil.copytree(loop.directory / "model", directory)
    save_file(weights, directory / "model.safetensors", {"format": "pt"})
    trainer = VerlTrainer(LearnerSettings(model_path=directory, cpu_threads=1))
    chat = {"messages": [{"role": "user", "content": "compute 12 plus 30"}], "logprobs": True}
    text = {"prompt": list(range(10, 40)), "logprobs": 0}
    for request in (text, chat):
        for sampling in ({"temperature": 0.0}, {"temperature": 1.0}, {"temperature": 0.7}, {"top_p": 0.8}):
            body = {"seed": 1, "temperature": 1.0, **request, **sampling}
            prompt, ids, reported, versions = await sampled(
                loop, node, "completions" if request is text else "chat/completions", **body
            )
            assert versions == {version} and len(ids) == len(reported) > 0
            warm = body["temperature"] or 1.0  # a greedy answer's probabilities are those at temperature 1
            call = replace(
                model_call(0, prompt, ids, sampling_params={"temperature": warm}),
                logprobs=array("f", reported).tobytes(),
            )
            (row,), _ = build_sequences("r", build_transitions([call]), SequenceConfig())
            (log_probs,) = trainer.log_probs([row])
            difference = np.array(reported) - log_probs[row.trained]
            largest = -np.log(sampling.get("top_p", 1.0))
            assert difference.min() > -1e-4 and difference.max() < largest + 1e-4, (sampling, difference)


ANSWER_BY_VLLM = """
import json, sys
from pathlib import Path
from vllm import LLM, SamplingParams

if __name__ == "__main__":
    engine = LLM(model=sys.argv[1], dtype="float32", max_model_len=128, max_num_seqs=4, enforce_eager=True)
    sampling = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    (output,) = engine.generate([{"prompt_token_ids": json.loads(sys.argv[2])}], sampling, use_tqdm=False)
    Path(sys.argv[3]).write_text(json.dumps(list(output.outputs[0].token_ids)))
"""


async def test_an_exported_version_answers_as_its_node(loop: Loop) -> None:
    """The directory of `weights export` has the bytes that were served, and vLLM and transformers load it."""
    import torch
    from transformers import AutoModelForCausalLM

    version, exported = STEPS + 3, loop.directory / "exported"
    async with loop.connected() as bus:
        node = await node_at(bus, version)
    prompt, served, _, versions = await sampled(
        loop, node, "completions", prompt=list(range(10, 40)), temperature=0.0, logprobs=0
    )
    assert versions == {version}
    await asyncio.to_thread(loop.run, "weights", "export", exported)
    published = loop.directory / f"published-{version}.safetensors"
    assert (exported / "model.safetensors").read_bytes() == published.read_bytes()
    (loop.directory / "answer.py").write_text(ANSWER_BY_VLLM)
    command = [sys.executable, "answer.py", str(exported), json.dumps(prompt), "answer.json"]
    fields = {**loop.environment, "VLLM_CPU_KVCACHE_SPACE": "1"}
    done = await asyncio.to_thread(
        subprocess.run, command, cwd=loop.directory, env=fields, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads((loop.directory / "answer.json").read_text()) == served
    model = AutoModelForCausalLM.from_pretrained(exported, dtype=torch.float32)
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt + served])).logits[0, len(prompt) - 1 : -1]
    assert logits.argmax(-1).tolist() == served


async def test_adapters_answer_as_the_weights_they_make(loop: Loop) -> None:
    """LoRA: a node given base and adapters computes what `transformers` does with the product added."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM

    version, weights = SERVED, moved(loop)
    save_file(weights, loop.directory / "base.safetensors")
    adapters = {}
    for name, tensor in weights.items():
        if name.endswith(("_proj.weight",)):
            module = "base_model.model." + name.removesuffix(".weight")
            adapters[f"{module}.lora_A.weight"] = 0.3 * torch.randn(4, tensor.shape[1])
            adapters[f"{module}.lora_B.weight"] = 0.3 * torch.randn(tensor.shape[0], 4)
    node = await publish_weights(
        loop, version, adapters, kind="lora", base=[loop.directory / "base.safetensors"], metadata={"scale": "0.5"}
    )
    prompt, ids, reported, versions = await sampled(loop, node, "completions", prompt=list(range(10, 40)), logprobs=0)
    assert versions == {version}
    model = AutoModelForCausalLM.from_pretrained(loop.directory / "model", dtype=torch.float32)
    model.load_state_dict(weights, strict=False)
    for name, module in model.named_modules():
        key = f"base_model.model.{name}.lora_"
        if key + "A.weight" in adapters:
            module.weight.data += 0.5 * adapters[key + "B.weight"] @ adapters[key + "A.weight"]
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
    expected = torch.log_softmax(logits.double(), -1).gather(1, torch.tensor(ids)[:, None])[:, 0]
    np.testing.assert_allclose(reported, expected, atol=1e-4)


def publish(loop: Loop, agent: str, *more: object, tasks: int = 1, samples: int = 1) -> str:
    """Publish tasks for an agent under a run of its own; returns the run."""
    run = f"{agent}-{time.monotonic_ns()}"
    path = loop.directory / f"{run}.jsonl"
    problems = [{"question": f"compute {n} plus 1", "answer": str(n + 1)} for n in range(10, 10 + tasks)]
    lines = [json.dumps({"id": str(n), "input": problem}) + "\n" for n, problem in enumerate(problems)]
    path.write_text("".join(lines))
    loop.run("publish", path, "--agent", agent, "--run", run, "--samples", samples, "--mode", "eval", *more)
    return run


@pytest.mark.parametrize(
    ("agent", "outcome", "error"),
    [
        ("raises", "agent_error", "RuntimeError: cannot do"),
        ("hangs", "timeout", "did not end within its deadline of 4 s"),
        ("says_nothing", "agent_error", "gave no reward"),
        ("wants_another_model", "agent_error", "model 'nobody' is not served; served: policy"),
    ],
)
def test_a_failing_agent_says_why(loop: Loop, agent: str, outcome: str, error: str) -> None:
    run = publish(loop, agent, "--deadline", 4)
    loop.until(f"SELECT count() FROM rollouts WHERE run_id = '{run}'", 1)
    ((actual, reward, text),) = loop.rows(f"SELECT outcome, reward, error FROM rollouts WHERE run_id = '{run}'")
    assert (actual, reward) == (outcome, None)
    assert error in text
    assert loop.fetch_value(f"SELECT status FROM spans WHERE run_id = '{run}' AND name LIKE 'invoke_agent%'") == "error"


@pytest.mark.parametrize(
    ("agent", "reward"),
    [("streams", 1.0), ("completes", 0.5), ("rewarded_by_span", 0.25), ("speaks_every_dialect", 1.0)],
)
def test_what_agents_use_of_the_api_works(loop: Loop, agent: str, reward: float) -> None:
    run = publish(loop, agent, tasks=3)
    loop.until(f"SELECT count() FROM rollouts WHERE run_id = '{run}'", 3)
    rows = loop.rows(f"SELECT outcome, reward, error FROM rollouts WHERE run_id = '{run}'")
    assert rows == [("ok", reward, "")] * 3
    assert loop.fetch_value(f"SELECT min(length(response_ids)) FROM completions WHERE run_id = '{run}'") > 0
    if agent == "speaks_every_dialect":
        alike = "uniqExact(prompt_ids), uniqExact(response_ids), min(length(logprobs) = length(response_ids)), count()"
        joined = "completions INNER JOIN prompts USING (run_id, rollout_id, execution_id, call)"
        assert loop.rows(f"SELECT {alike} FROM {joined} WHERE run_id = '{run}'") == [(1, 1, 1, 3 * 5)]
    if agent == "rewarded_by_span":
        assert loop.fetch_value(f"SELECT count() FROM spans WHERE run_id = '{run}' AND name = 'judge'") == 3
        traces = loop.fetch_value(f"SELECT uniqExact(trace_id) FROM spans WHERE run_id = '{run}'")
        assert traces == 3


def test_a_pinned_rollout_is_answered_by_that_version_only(loop: Loop) -> None:
    run = publish(loop, "default", "--version", SERVED, "--temperature", 0, tasks=4, samples=2)
    loop.until(f"SELECT count() FROM rollouts WHERE run_id = '{run}' AND outcome = 'ok'", 8)
    assert loop.fetch_value(f"SELECT groupUniqArrayArray(token_versions) FROM completions WHERE run_id = '{run}'") == [
        SERVED
    ]
    answers = (
        f"SELECT uniqExact(response_ids) AS n FROM completions WHERE run_id = '{run}' AND call = 0 GROUP BY task_id"
    )
    assert loop.rows(answers) == [(1,)] * 4, "two greedy samples of one task differ"


def test_a_second_runner_joins_and_leaves_without_loss(loop: Loop) -> None:
    second = loop.start("runner", "--entrypoint", "agent:solve", "--working-dir", CALCULATOR, "-n", 2)
    assert second.stderr is not None
    for line in second.stderr:
        if "takes tasks of agent default" in line:
            break
    run = publish(loop, "default", tasks=30, samples=4)
    loop.until(f"SELECT uniqExact(runner) FROM rollouts WHERE run_id = '{run}'", 2)
    second.send_signal(signal.SIGTERM)
    assert second.wait(HANG_SECONDS) == 0
    loop.until(f"SELECT count() FROM rollouts WHERE run_id = '{run}' AND outcome = 'ok'", 120)
    loop.until("SELECT count() FROM check_unfinished_rollouts", 0)
    assert loop.fetch_value(f"SELECT count() FROM attempts WHERE run_id = '{run}'") == 120


async def test_messages_nobody_can_read_become_dead_letters(loop: Loop) -> None:
    async with loop.connected() as bus:
        headers = {"Lightningbus-Schema": schema_of(SpanBatch)}
        await bus.js.publish(subjects.rollout("eval"), b"\xc1 not msgpack", headers=headers)
        task = subjects.task("eval", "default")
        await bus.js.publish(task, msgpack.packb({"id": "x"}), headers={"Lightningbus-Schema": schema_of(Task)})
    await asyncio.to_thread(loop.until, "SELECT count() FROM dead_letters", 2)
    reasons = dict(loop.rows("SELECT stream, reason FROM dead_letters"))
    assert "not MessagePack" in reasons["EVAL_ROLLOUTS"]
    assert "missing required field `run_id`" in reasons["TASKS"]


async def test_agents_do_not_notice_that_vllm_was_killed(loop: Loop) -> None:
    """Their calls are held until the engine is back, with verified weights; answers that broke off are gone on with."""
    async with loop.connected() as bus:
        node = await node_at(bus, SERVED)
        (engine, *_) = psutil.Process(node.pid).children()
        run = await asyncio.to_thread(publish, loop, "default", "--deadline", 170, tasks=15, samples=4)
        await asyncio.to_thread(loop.until, f"SELECT count() > 0 FROM rollouts WHERE run_id = '{run}'", 1)
        engine.kill()
        states = set()
        async with bus.fleet("inference") as nodes, asyncio.timeout(HANG_SECONDS):
            while "ready" not in states or len(states) < 3:
                await nodes.wait_for_change()
                states |= {beat.state for beat in nodes.members() if beat.pid == node.pid and not engine.is_running()}
    assert {"starting", "awaiting_weights", "ready"} <= states
    await asyncio.to_thread(loop.until, f"SELECT count() FROM rollouts WHERE run_id = '{run}' AND outcome = 'ok'", 60)
    assert loop.fetch_value(f"SELECT count() FROM attempts WHERE run_id = '{run}'") == 60, "no attempt was lost to it"


def test_of_two_learners_the_older_one_stops(loop: Loop) -> None:
    older = loop.start("learner", "--settings", learner_settings(loop, max_steps=200))
    assert older.stderr is not None
    next(line for line in older.stderr if ": reward" in line)
    same = loop.run("learner", "--settings", learner_settings(loop, max_steps=200), check=False)
    assert same.returncode == 2 and "another learner is using" in same.stderr
    copy = loop.directory / "copied"
    latest_path = (loop.directory / "checkpoints" / "latest").resolve()
    shutil.copytree(latest_path, copy / latest_path.name)
    (copy / "latest").symlink_to(latest_path.name)
    shutil.copy(loop.directory / "checkpoints.key", loop.directory / "copied.key")
    newer = loop.start("learner", "--settings", learner_settings(loop, max_steps=200, checkpoint_dir=str(copy)))
    assert newer.stderr is not None
    _, text = older.communicate(timeout=HANG_SECONDS)
    assert older.returncode == 2 and "another learner has published model 'policy' since" in text, text[-2000:]
    received: list[str] = []
    for line in newer.stderr:
        received.append(line)
        if ": reward" in line:
            break
    else:
        raise AssertionError("".join(received)[-3000:])
    newer.send_signal(signal.SIGTERM)
    newer.communicate(timeout=HANG_SECONDS)
    assert newer.returncode == 0
    assert loop.fetch_value("SELECT count() FROM check_duplicate_training") == 0


def test_the_questions_of_the_command_line(loop: Loop) -> None:
    rollout = loop.fetch_value("SELECT any(rollout_id) FROM rollouts WHERE run_id = 'small'")
    sql = f"SELECT call, position, token, version FROM tokens WHERE rollout_id = '{rollout}'"
    rows = json.loads(loop.run("query", sql, "--json").stdout)
    assert rows and all(row["version"] in range(SERVED) for row in rows)
    for report in ("reward_by_version", "staleness", "outcomes", "drift", "credit_by_call"):
        assert "small" in loop.run("report", report).stdout
    assert "small,train,,default,ok" in loop.run("report", "outcomes", "--csv").stdout
    status = loop.run("status").stdout
    for role in ("inference-0", "runner-0", "store"):
        assert role in status
    wrong = loop.run("query", "SELECT nothing FROM nowhere", check=False)
    assert wrong.returncode == 2 and "Traceback" not in wrong.stderr and "nowhere" in wrong.stderr
