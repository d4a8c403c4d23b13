"""The command line as its user meets it: help worth reading, one sentence when something is wrong."""

import asyncio
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from transformers import Qwen2Config

from lightningbus.bus.client import Bus
from lightningbus.bus.connection import CONNECT_SECONDS
from lightningbus.bus.embedded.nats_server import NatsServer
from lightningbus.bus.fleet import heartbeats
from lightningbus.bus.streams.specs import STORE_EVENTS
from lightningbus.common.listeners import find_reachable_host
from lightningbus.run.processes.role_process import EX_TEMPFAIL
from lightningbus.schemas import subjects
from lightningbus.schemas.tasks import Task
from lightningbus.tasks.task_publisher import TaskPublisher
from tests.commands import ROOT, environment
from tests.learner.conftest import tiny_tokenizer, without_tensors
from tests.polling import HANG_SECONDS
from tests.stream_limits import limit

pytestmark = pytest.mark.integration

COMMAND = str(Path(sys.executable).with_name("lightningbus"))
ROLES = ["bus", "store", "inference", "learner", "runner"]


def run(
    *arguments: object, cwd: Path | None = None, timeout: float = HANG_SECONDS
) -> "subprocess.CompletedProcess[str]":
    """``lightningbus …`` to its end."""
    return subprocess.run(
        [COMMAND, *map(str, arguments)],
        cwd=cwd, capture_output=True, text=True, timeout=timeout, check=False, env={**environment(), "COLUMNS": "120"},
    )  # fmt: skip


def says(done: "subprocess.CompletedProcess[str]") -> str:
    """The one sentence of a failure."""
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    (sentence,) = done.stderr.strip().splitlines()
    return sentence.removeprefix("lightningbus: ")


def test_the_help_of_a_role_names_its_options() -> None:
    out = run("runner", "--help").stdout
    assert "module:function" in out and "--python" in out and "-n" in out
    assert all("--bus" in run(role, "--help").stdout for role in ROLES if role != "bus")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ("concurrency: 0", "runner.yaml: concurrency: Input should be greater than or equal to 1"),
        ("entrypont: a:b", "runner.yaml: entrypont: no such setting; did you mean 'entrypoint'?"),
        ("reward_fn: a b", "runner.yaml: reward_fn: it is not of the form module:function"),
        ("agent_name: a b", "runner.yaml: agent_name: it is no name: letters, digits, _ and -, at most 64"),
        ("command: [x]", "runner.yaml: give either an agent (module:function) or a command"),
        ("- a", "runner.yaml is not a settings file: it holds no fields"),
        ("{", "runner.yaml is not YAML"),
    ],
)
def test_a_wrong_setting_is_one_sentence_that_names_the_field(tmp_path: Path, settings: str, sentence: str) -> None:
    (tmp_path / "runner.yaml").write_text(settings)
    assert sentence in says(run("runner", "--settings", "runner.yaml", "--entrypoint", "a:b", cwd=tmp_path))


def test_a_run_file_that_is_wrong_names_the_place(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("runners:\n- entrypoint: a:b\n  deadline: 3\n")
    assert says(run("up", "-c", "run.yaml", cwd=tmp_path)) == "run.yaml: runners.0.deadline: no such setting"
    assert says(run("learner", cwd=tmp_path)) == "settings: model_path: it is needed"


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (
            {"learner": {"model_path": "m", "max_stesp": 1}},
            "learner.max_stesp: no such setting; did you mean 'max_steps'?",
        ),
        ({"learner": {"model_path": "m", "lora": {"lora_rnk": 1}}}, "learner.lora.lora_rnk: no such setting; did you"),
        (
            {"inference": [{"model_path": "m", "modle": "x"}]},
            "inference.0.modle: no such setting; did you mean 'model'?",
        ),
        ({"bus": {"prot": 1}}, "bus.prot: no such setting; did you mean 'port'?"),
        ({"stroe": {}}, "stroe: no such setting; did you mean 'store'?"),
        ({"eval": {"tasks": "t", "zzz": 1}}, "eval.zzz: no such setting; known are agent, best_by, deadline"),
    ],
)
def test_a_misspelt_key_names_the_nearest_right_one(tmp_path: Path, fields: dict[str, Any], sentence: str) -> None:
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(fields))
    assert says(run("up", "-c", "run.yaml", cwd=tmp_path)).startswith(f"run.yaml: {sentence}")


def test_an_error_names_no_option_that_the_command_lacks(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (tmp_path / "run.yaml").write_text(yaml.safe_dump({"bus": {"port": port}}))
        sentence = says(run("up", "-c", "run.yaml", cwd=tmp_path))
    assert sentence == f"port {port} is in use: choose another, or 0 for a free one"


@pytest.mark.parametrize("address", ["http://127.0.0.1:1", "http://user:secret@127.0.0.1:1"])
def test_a_question_to_a_dead_address_is_answered_by_its_sentence_only(tmp_path: Path, address: str) -> None:
    sentence = says(run("query", "SELECT 1", "--sql", address, cwd=tmp_path))
    assert sentence == "no ClickHouse answers at http://127.0.0.1:1: Connection refused"


def test_provision_prints_what_it_checked_made_and_changed(nats: NatsServer) -> None:
    def provision(*options: str) -> str:
        return run("provision", "--bus", nats.url, *options).stdout

    assert re.fullmatch(r"checked \d+ streams and \d+ durables: all are new\n", provision())
    assert provision().endswith(" durables: nothing was missing, and nothing changed\n")
    assert provision("--size", "tasks_mib=7").endswith(": changed TASKS\n")
    added = provision("--agent", "calc", "--size", "tasks_mib=8")
    assert added.endswith(": created TASKS/runner-calc-eval, TASKS/runner-calc-train; changed TASKS\n")
    waits = provision("--agent", "calc", "--ack-wait", "5")
    assert waits.endswith(": changed TASKS/runner-calc-eval, TASKS/runner-calc-train\n")


def test_provision_that_the_server_refuses_says_what_to_do(nats: NatsServer) -> None:
    assert "not in a cluster: leave out --replicas" in says(run("provision", "--bus", nats.url, "--replicas", 3))


def test_a_reward_that_cannot_be_loaded_is_not_blamed_on_the_agent(tmp_path: Path, nats: NatsServer) -> None:
    (tmp_path / "agent.py").write_text("def solve(task): return 1.0\n")
    options = [
        "--entrypoint",
        "agent:solve",
        "--reward-fn",
        "agent:judge",
        "--working-dir",
        tmp_path,
        "--bus",
        nats.url,
    ]
    assert run("provision", "--bus", nats.url).returncode == 0
    done = run("runner", *options)
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert "reward function agent:judge cannot be loaded" in last and "no attribute 'judge'" in last
    assert "agent:solve" not in last


@pytest.mark.parametrize(("missing", "sentence"), [(True, "there is no such directory"), (False, "no config.json")])
def test_a_model_path_that_holds_no_model_says_so(tmp_path: Path, missing: bool, sentence: str) -> None:
    (tmp_path / "tasks.jsonl").write_text('{"id": "a", "input": 1}\n')
    if not missing:
        (tmp_path / "model").mkdir()
    job: dict[str, Any] = {
        "store": {},
        "inference": [{"model_path": "model"}],
        "learner": {"model_path": "model", "tasks": "tasks.jsonl", "engine": {"check_model": False}},
        "runners": [{"entrypoint": "agent:solve"}],
        "eval": {"tasks": "tasks.jsonl"},
    }
    (tmp_path / "train.yaml").write_text(yaml.safe_dump(job))
    done = run("train", "-c", "train.yaml", "--dry-run", cwd=tmp_path)
    assert done.returncode == 2 and "Hugging" not in done.stderr
    assert sentence in says(done)
    assert "run.yml cannot be read: No such file" in says(run("up", "-c", "run.yml", cwd=tmp_path))


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ('{"id": "b"', "line 2"),
        ('{"id": "b"}', "line 2"),
        ('["b"]', "line 2"),
        ('{"id": "a", "input": 1}', "line 2"),
        ('{"id": "", "input": 1}', "line 2"),
    ],
)
def test_a_malformed_task_line_is_named_and_nothing_is_published(tmp_path: Path, line: str, sentence: str) -> None:
    (tmp_path / "tasks.jsonl").write_text('{"id": "a", "input": {"n": 1}}\n' + line + "\n")
    text = says(run("publish", "tasks.jsonl", "--bus", "nats://127.0.0.1:1", cwd=tmp_path))
    assert sentence in text and "tasks.jsonl" in text, "every line is checked before the bus is even asked for"


def test_nobody_on_the_bus_is_said_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text('{"id": "a", "input": {"n": 1}}\n')
    text = says(run("publish", "tasks.jsonl", "--bus", "nats://user:secret@127.0.0.1:1", cwd=tmp_path))
    assert "127.0.0.1:1" in text and "secret" not in text
    assert "no store is running and there is no run here" in says(run("query", "SELECT 1", cwd=tmp_path))


def test_names_and_modes_are_checked_before_anything_is_sent(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text('{"id": "a", "input": 1}\n')
    assert "--mode: 'test'" in says(run("publish", "tasks.jsonl", "--mode", "test", cwd=tmp_path))
    assert "--run: 'a b'" in says(run("publish", "tasks.jsonl", "--run", "a b", cwd=tmp_path))
    assert "--run goes with the name of a report" in says(run("report", "--run", "x", cwd=tmp_path))
    assert "there is no report 'x'; there are: audit, " in says(run("report", "x", cwd=tmp_path))
    assert says(run("report", "outcome", cwd=tmp_path)).endswith("did you mean 'outcomes'?")


async def test_a_bus_port_in_use_is_one_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        text = says(run("bus", "--port", port, "--dir", tmp_path / "bus", cwd=tmp_path))
    assert str(port) in text


def test_a_bus_on_all_interfaces_prints_an_address_for_others(tmp_path: Path) -> None:
    command = [COMMAND, "bus", "--port", "0", "--host", "0.0.0.0", "--insecure", "--dir", str(tmp_path / "bus")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        assert process.stdout is not None
        try:
            url = process.stdout.readline().removeprefix("bus: ").strip()
            assert asyncio.run(waiting_tasks(url)) == 0
        finally:
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=HANG_SECONDS)
    assert urlsplit(url).hostname == find_reachable_host("0.0.0.0") != "127.0.0.1"
    assert f"bus: on this machine it is at nats://127.0.0.1:{urlsplit(url).port} too" in errors
    assert [find_reachable_host(host) for host in ("bus.example", "::1")] == ["bus.example", "[::1]"]


def test_ctrl_c_stops_a_bus_cleanly_and_what_it_held_is_there_again(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text('{"id": "a", "input": 1}\n')
    command = [COMMAND, "bus", "--port", "0", "--dir", str(tmp_path / "bus")]
    for turn in range(2):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path)
        assert process.stdout is not None
        try:
            url = process.stdout.readline().removeprefix("bus: ").strip()
            if turn == 0:
                assert run("publish", "tasks.jsonl", "--bus", url, cwd=tmp_path).returncode == 0
            assert asyncio.run(waiting_tasks(url)) == 1
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=HANG_SECONDS)
        assert process.returncode == 0


async def waiting_tasks(url: str) -> int:
    """Messages in the work queue."""
    async with Bus.connect(url) as bus:
        return (await bus.js.stream_info(subjects.TASKS)).state.messages


def test_tasks_of_a_file_reach_the_bus_once_however_often_it_is_published(tmp_path: Path, nats: NatsServer) -> None:
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps({"id": f"t{n}", "input": n}) + "\n" for n in range(5)))
    assert run("provision", "--bus", nats.url).returncode == 0
    for answer in ("15 rollouts of 5 tasks published", "0 of 15 published, 15 were there already"):
        done = run("publish", "tasks.jsonl", "--samples", 3, "--bus", nats.url, cwd=tmp_path)
        assert done.returncode == 0 and done.stdout.startswith(answer), done.stderr
    assert run("status", "--bus", nats.url).stdout == "nobody is alive on this bus\n"


async def test_status_shows_what_stands_still(bus: Bus, nats_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeats, "INTERVAL_SECONDS", 0.1)  # many of them while the command listens
    reason = "no rollout has finished for 90 s and 7 tasks wait: no runner is there to take them"
    async with bus.heartbeat("store", "store", lambda: {"state": "inserting", "status": {"rows": 5, "alert": reason}}):
        done = await asyncio.to_thread(run, "status", "--bus", nats_url)
        as_json = await asyncio.to_thread(run, "status", "--bus", nats_url, "--json")
    assert done.returncode == 0, done.stderr
    assert f"ALERT  {reason}" in done.stdout
    assert "rows 5" in done.stdout and done.stdout.count(reason) == 1
    (member,) = json.loads(as_json.stdout)
    assert (member["role"], member["state"], member["status"]["rows"]) == ("store", "inserting", 5)


async def test_status_names_a_store_that_was_there_and_what_waits_for_it(bus: Bus, nats_url: str) -> None:
    for number in range(3):
        await TaskPublisher(bus).publish_task(Task(id=f"t{number}", run_id="r", agent="default", input=1))
    assert (await asyncio.to_thread(run, "status", "--bus", nats_url)).stderr == "", "no store was there"
    async with bus.pull(STORE_EVENTS, slots=1) as store:
        await (await anext(store)).ack(sync=True)
    done = await asyncio.to_thread(run, "status", "--bus", nats_url)
    sentence = "no store is alive, and there was one: 2 events wait until it is started again\n"
    assert (done.returncode, done.stderr) == (0, sentence)


def test_a_question_does_not_wait_for_a_bus_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from lightningbus.cli.commands.manage import dlq, weights
    from lightningbus.cli.commands.results import status

    monkeypatch.chdir(tmp_path)
    for ask in (status.status, dlq.list_, weights.list_):
        before = time.monotonic()
        with pytest.raises(SystemExit, match="2"):
            ask(bus="nats://127.0.0.1:1")
        assert 0.9 < time.monotonic() - before < CONNECT_SECONDS, "it waits as long as a process that needs the bus"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--version"], 0),
        (["trian"], 2),
        (["publish", "missing.jsonl"], 2),
    ],
    ids=["done", "wrong usage", "user error"],
)
def test_exit_codes_are_those_of_the_page(tmp_path: Path, arguments: list[str], code: int) -> None:
    page = (ROOT / "docs" / "cli.md").read_text()
    assert f"\n| {code} | " in page and f"\n| {EX_TEMPFAIL} | " in page
    assert run(*arguments, cwd=tmp_path).returncode == code


async def test_publishing_into_a_full_queue_waits_and_says_for_whom(bus: Bus, nats_url: str, tmp_path: Path) -> None:
    await limit(bus, subjects.TASKS, 2)
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text("".join(f'{{"id": "{n}", "input": {n}}}\n' for n in range(3)))
    done = await asyncio.to_thread(run, "publish", tasks, "--bus", nats_url, "--timeout", 1)
    assert done.returncode == 2
    assert "the stream is full; waiting until its readers have made room" in done.stderr
    assert "the stream stayed full for 1 s; its readers are slow or gone" in done.stderr
    waiting = asyncio.create_task(asyncio.to_thread(run, "publish", tasks, "--bus", nats_url))
    await limit(bus, subjects.TASKS, None)
    assert (await waiting).returncode == 0
    assert await waiting_tasks(nats_url) == 3


@pytest.mark.long
def test_a_training_job_is_checked_without_its_weights(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer(tmp_path / "model")
    Qwen2Config(num_hidden_layers=3, vocab_size=320).save_pretrained(tmp_path / "model")
    without_tensors(tmp_path / "model")
    (tmp_path / "tasks.jsonl").write_text('{"id": "a", "input": 1}\n')
    asks = "    OpenAI().chat.completions.create(model='judge', messages=[{'role': 'user', 'content': 'hello'}])\n"
    agent = f"from openai import OpenAI\n\ndef solve(task):\n{asks}    return 1.0\n"
    (tmp_path / "agent.py").write_text(agent)
    node = {"model_path": "model"}
    job: dict[str, Any] = {
        "store": {},
        "inference": [node],
        "learner": {"model_path": "model", "tasks": "tasks.jsonl", "engine": {"check_model": False}},
        "runners": [{"entrypoint": "agent:solve", "endpoints": {"judge": {"url": "http://127.0.0.1:1/v1"}}}],
    }
    (tmp_path / "train.yaml").write_text(yaml.safe_dump(job))
    arguments = ["train", "-c", "train.yaml", "--dry-run"]
    done = run(*arguments, cwd=tmp_path)
    assert "warning: no held-out tasks (eval.tasks)" in done.stdout + done.stderr
    job["eval"] = {"tasks": "other.jsonl"}
    (tmp_path / "train.yaml").write_text(yaml.safe_dump(job))
    assert "other.jsonl cannot be read" in says(run(*arguments, cwd=tmp_path))
    shutil.copy(tmp_path / "tasks.jsonl", tmp_path / "other.jsonl")
    done = run(*arguments, cwd=tmp_path)
    assert "warning: 1 of the 1 tasks of other.jsonl are trained on too, as 'a'" in done.stdout
    (tmp_path / "other.jsonl").write_text('{"id": "a", "input": 2}\n')
    done = run(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    *lines, trial, warning = done.stdout.splitlines()
    assert lines[4].startswith("policy: ") and "GiB" in lines[4], "a table where it does not fit"
    planned = run(*arguments, "--gpu-memory", 80, "--gpu-tflops", 100, cwd=tmp_path).stdout.splitlines()[4:]
    assert planned[0].startswith("policy: memory of each of 1 rank, 16,384 tokens at once, in GiB")
    assert f"  {'parameters':<44}{1015.6e6 * 4 / 2**30:8.1f}" in planned, "float32"
    assert any("about" in line and "an estimate" in line for line in planned)
    assert lines[:4] == [
        "tasks.jsonl: 1 tasks",
        "other.jsonl: 1 tasks",
        "TRAIN_ROLLOUTS: 2,048 MiB hold the steps between two checkpoints",
        f"model: qwen2, 3 layers, 1,015.6M parameters, {len(tokenizer)} tokens",
    ]
    summary = r"agent:solve: task 'a' with scripted answers: 1 model call, reward 1, \d+\.\d s; not asked, .*: judge"
    assert re.fullmatch(summary, trial)
    assert warning.startswith("warning: no call is of 'policy', which learns from its own calls alone; called: judge")
    (tmp_path / "agent.py").write_text(agent.replace(asks, ""))
    assert "agent:solve: task 'a' made no model call, so that there is " in says(run(*arguments, cwd=tmp_path))
    (tmp_path / "agent.py").write_text(agent)
    other = run(*arguments, "--gpu-memory", 4, "--ranks", 2, "--gpu-tflops", 100, cwd=tmp_path).stdout
    assert "GiB does not fit in 4.0 GiB" in other and "at 100 TFLOP/s on each rank" in other
    assert f"  {'inference engine on the same device':<44}{0.92 * 4:8.1f}" in other, "vLLM's default share"
    large = {"groups_per_step": 512, "group_size": 16, "seq_len": 16384, "max_staleness": 0}
    (tmp_path / "large.yaml").write_text(yaml.safe_dump({**job, "learner": {**job["learner"], **large}}))
    refused = says(run("train", "-c", "large.yaml", "--dry-run", cwd=tmp_path))
    assert "8,192 rollouts of 299,008 bytes), but half of stream TRAIN_ROLLOUTS is 1,024 MiB" in refused
    assert "set train_rollouts_mib to 4672" in refused
    unfit = {
        **job,
        "learner": {**job["learner"], "lora": {"lora_rank": 9}},
        "inference": [{**node, "lora": {"rank": 8}}],
    }
    (tmp_path / "unfit.yaml").write_text(yaml.safe_dump(unfit))
    text = "unfit.yaml: inference.lora.rank: the learner's adapters are of rank 9"
    assert says(run("train", "-c", "unfit.yaml", "--dry-run", cwd=tmp_path)) == text
    (tmp_path / "agent.py").write_text("import no_such_framework\n")
    done = run(*arguments, cwd=tmp_path)  # which shows the agent's own traceback too
    assert done.returncode == 2
    assert "No module named 'no_such_framework'" in done.stderr.splitlines()[-1]
