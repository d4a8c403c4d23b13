"""What an agent's processes may take, see and leave behind: limits, private files, a sandbox, and a clean end."""

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from aiohttp import web

from lightningbus.bus.client import Bus
from lightningbus.bus.embedded.nats_server import free_port
from lightningbus.common.processes.procfs import descendants, is_alive
from lightningbus.common.processes.subprocesses import kill_group, spawn
from lightningbus.inference.engine.vllm_engine import VllmEngine
from lightningbus.inference.settings import InferenceSettings
from lightningbus.run.preflight.trial_rollout import TrialTask, try_agent
from lightningbus.runners.agent.factory import RELAY_SCRIPT, sandbox_paths
from lightningbus.runners.agent.launcher import AgentLauncher, AgentStartError
from lightningbus.runners.agent.limits import ResourceLimits
from lightningbus.runners.agent.output import BURST_BYTES, READ_BYTES
from lightningbus.runners.agent.process import ProcessWatchdog
from lightningbus.runners.settings import RunnerSettings
from lightningbus.schemas.semconv import attributes
from lightningbus.schemas.spans import SpanBatch
from lightningbus.store.embedded.serving import serve_readonly
from lightningbus.tasks.task_loading import TaskInput
from lightningbus.tasks.task_publisher import TaskPublisher
from tests.listening import child, ports_and_sockets
from tests.polling import HANG_SECONDS, until
from tests.runners.conftest import AGENTS, ScriptedEngine, ended, running, task

ROOT = Path(__file__).resolve().parents[2]
STAND_IN = str(ROOT / "tests" / "chaos" / "vllm.py")
BRING = ROOT / "docs" / "bring-your-agent.md"


def result_of(batch: SpanBatch) -> Any:
    """What the agent returned."""
    assert batch.end is not None and batch.end.outcome == "ok", batch.end
    return json.loads(batch.end.result)


@pytest.mark.parametrize(
    ("agent", "settings", "sentence"),
    [
        ("leaks_in_children", {"memory_limit_gib": 0.4}, "processes; the limit is memory_limit_gib: 0.4"),
        ("forks_without_end", {"max_processes": 8}, "processes; the limit is max_processes: 8"),
        ("writes_without_end", {"max_file_gib": 0.01}, "File too large; the limit is max_file_gib: 0.01"),
        ("opens_without_end", {"max_open_files": 64}, "the limit is max_open_files: 64"),
    ],
)
async def test_who_takes_more_than_it_may_is_an_agent_error_that_names_the_limit(
    bus: Bus, engine: ScriptedEngine, agent: str, settings: dict[str, Any], sentence: str
) -> None:
    async with running(bus, entrypoint=f"hostile:{agent}", **settings):
        await TaskPublisher(bus).publish_task(task(id="a"))
        await TaskPublisher(bus).publish_task(task(id="b", input={"calm": True}))
        greedy, after = await ended(bus, 2)
    assert greedy.end is not None and greedy.end.outcome == "agent_error", greedy.end
    assert sentence in greedy.end.error
    assert after.end is not None and after.end.outcome == "ok", "the next rollout has a fresh process"


FORKS = """
import os, signal, sys
shared = bytearray(os.urandom(64 * 2**20))
children = []
for _ in range(8):
    pid = os.fork()
    if pid == 0:
        own = bytearray(os.urandom(int(sys.argv[1]) * 2**20))
        os.write(1, b"ready\\n")
        signal.pause()
    children.append(pid)
signal.pause()
"""


@pytest.mark.integration
@pytest.mark.parametrize(("own_mib", "sentence"), [(1, ""), (24, r"the agent held 0\.[23]\d GiB in 9 processes; ")])
def test_memory_that_forks_share_counts_once(own_mib: int, sentence: str) -> None:
    """64 MiB in 9 processes are 0.56 GiB by their RSS."""
    process = subprocess.Popen([sys.executable, "-c", FORKS, str(own_mib)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        for _ in range(8):
            assert process.stdout.readline() == b"ready\n"
        reason = ResourceLimits(memory_limit_gib=0.2).find_violation(process.pid)
        assert re.match(sentence, reason) if sentence else reason == ""
    finally:
        for pid in descendants(process.pid):
            os.kill(pid, signal.SIGKILL)
        process.kill()
        process.communicate()


async def test_each_process_has_a_directory_of_its_own_and_nothing_of_it_is_left(
    bus: Bus, engine: ScriptedEngine
) -> None:
    async with running(bus, entrypoint="hostile:tells", max_tasks_per_child=1):
        await TaskPublisher(bus).publish_task(task(id="a"))
        await TaskPublisher(bus).publish_task(task(id="b"))
        item, other = map(result_of, await ended(bus, 2))
    assert item["tmp"] != other["tmp"] and item["key"] != other["key"], "a fresh process for each rollout"
    assert not Path(item["tmp"]).exists() and not Path(other["tmp"]).exists()
    assert item["umask"] == 0o077


async def test_a_daemon_ends_with_its_agent(bus: Bus, engine: ScriptedEngine) -> None:
    async with running(bus, entrypoint="hostile:leaves_a_daemon"):
        await TaskPublisher(bus).publish_task(task())
        (batch,) = await ended(bus)
        daemon = result_of(batch)["daemon"]
        assert is_alive(daemon), "the agent lives, and so may what it started"
    await asyncio.to_thread(until, lambda: is_alive(daemon), False)


def usable(*command: str) -> str:
    """Why a command cannot be used here; empty if it can."""
    if shutil.which(command[0]) is None:
        return f"{command[0]} is not installed"
    tried = subprocess.run([*command, "true"], capture_output=True, text=True)
    return f"{command[0]} does not work here: {tried.stderr.strip()}" if tried.returncode else ""


@pytest.mark.parametrize("prefix", [["env", "MARK={tmp}"], ["setpriv", "--no-new-privs"]])
async def test_whatever_hands_on_input_output_and_environment_may_stand_in_front(
    bus: Bus, engine: ScriptedEngine, prefix: list[str]
) -> None:
    if why := usable(*prefix):
        pytest.skip(why)
    async with running(bus, entrypoint="hostile:tells", sandbox_command=prefix):
        await TaskPublisher(bus).publish_task(task())
        (batch,) = await ended(bus)
    reported = result_of(batch)
    assert reported["marked"] == (reported["tmp"] if prefix[0] == "env" else None)
    assert ("NoNewPrivs:\t1" in reported["status"]) == (prefix[0] == "setpriv")


GIVEN = {
    *("OPENAI_BASE_URL", "OPENAI_API_BASE", "OPENAI_API_KEY", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY"),
    *("GOOGLE_GEMINI_BASE_URL", "GEMINI_API_KEY"),
    *("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_HEADERS"),
    *("AGL_OPENAI_BASE_URL", "AGL_EVENT_URL", "AGL_KEY"),
    *("OTEL_BSP_SCHEDULE_DELAY", "PYTHONUNBUFFERED", "TMPDIR"),
}
"""What an agent needs to find its model and to be heard."""


@pytest.mark.parametrize("env", [["HF_HOME", "NOT_SET", "AWS_REGION=a=b"], {"HF_HOME": "/models", "AWS_REGION": "a=b"}])
async def test_an_agent_finds_in_its_environment_what_is_on_the_list_and_nothing_else(
    bus: Bus, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch, env: list[str] | dict[str, str]
) -> None:
    for name in ("HF_TOKEN", "GOOGLE_APPLICATION_CREDENTIALS", "AZURE_CLIENT_SECRET", "AWS_SECRET_ACCESS_KEY", "X"):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("HF_HOME", "/models")
    monkeypatch.setenv("LC_TIME", "C.UTF-8")
    monkeypatch.setenv("TZ", "UTC")
    command = [sys.executable, "-c", "import json, os, sys; print(json.dumps({'reward': 1.0, **os.environ}))"]
    async with running(bus, command=command, env=env):
        await TaskPublisher(bus).publish_task(task())
        (batch,) = await ended(bus)
    environment = {name: text for name, text in result_of(batch).items() if name != "reward"}
    listed = {name for name in os.environ if name in ("PATH", "HOME", "LANG", "TZ") or name.startswith("LC_")}
    assert environment.keys() - {"LC_CTYPE"} == (GIVEN | listed | {"HF_HOME", "AWS_REGION"}) - {"LC_CTYPE"}
    assert (environment["HF_HOME"], environment["AWS_REGION"], environment["TZ"]) == ("/models", "a=b", "UTC")


def test_an_entry_of_env_that_is_no_variable_is_refused() -> None:
    with pytest.raises(ValueError, match="'A B=1' is neither a variable's name nor NAME=VALUE"):
        RunnerSettings(entrypoint="plain:asks", env=["A B=1"])


async def test_what_an_agent_prints_reaches_our_log_whole_lines_of_it_and_not_without_end(
    bus: Bus, engine: ScriptedEngine, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    async with running(bus, entrypoint="hostile:prints_without_end", max_file_gib=0.001):
        await TaskPublisher(bus).publish_task(task())
        (batch,) = await ended(bus)
    assert (result_of(batch)["file"], result_of(batch)["shortened"]) == (False, False)
    first, *lines = [line for line in capfd.readouterr().err.splitlines() if line[:3] in ("its", "xxx")]
    assert first == "its first words" and set(lines) <= {"x" * 99, "its last words"}
    assert BURST_BYTES - 2 * READ_BYTES < 100 * len(lines) < 2 * BURST_BYTES
    assert "bytes of what an agent printed were dropped" in caplog.text
    text = printed_of(batch)
    assert text.startswith("(") and " bytes before)\n" in text and "its first words" not in text
    assert text.rstrip().endswith("its last words") and len(text) < 17_000


def printed_of(batch: SpanBatch) -> str:
    """What the record of a rollout says that its agent printed."""
    return "".join(str(span.attributes.get(attributes.AGENT_OUTPUT, "")) for span in batch.spans)


async def test_what_an_agent_prints_is_in_the_record_of_its_own_rollout(bus: Bus, engine: ScriptedEngine) -> None:
    async with running(bus, command=[sys.executable, str(AGENTS / "program.py")]):
        await TaskPublisher(bus).publish_task(task(input={"n": 1}))
        (batch,) = await ended(bus)
    assert printed_of(batch) == "this goes nowhere that matters\n"
    async with running(bus, entrypoint="plain:prints_its_word"):
        for number in range(2):
            await TaskPublisher(bus).publish_task(task(id=f"p{number}", input={"word": f"word {number}"}))
        batches = await ended(bus, 2)
    texts = {batch.task_id: printed_of(batch) for batch in batches}
    assert [texts[f"p{number}"] for number in range(2)] == ["word 0\n", "word 1\n"]


async def test_the_ended_are_not_counted_and_a_process_that_leaves_many_gives_way(
    bus: Bus, engine: ScriptedEngine
) -> None:
    async with running(bus, entrypoint="hostile:leaves_zombies"):
        await TaskPublisher(bus).publish_task(task(id="a"))
        await TaskPublisher(bus).publish_task(task(id="b"))
        item, other = map(result_of, await ended(bus, 2))
    assert item["pid"] != other["pid"]
    leaves = "import hostile, time; hostile.leaves_zombies({}); print(flush=True); time.sleep(600)"
    environment = {**os.environ, "PYTHONPATH": str(AGENTS), "OPENAI_API_KEY": "none"}
    process = await spawn(sys.executable, "-c", leaves, stdout=asyncio.subprocess.PIPE, env=environment)
    assert process.stdout is not None
    await process.stdout.readline()
    assert len(descendants(process.pid)) == 120 and ResourceLimits(max_processes=1).find_violation(process.pid) == ""
    await kill_group(process)


@pytest.mark.integration
async def test_what_a_process_leaves_ends_with_it_though_nobody_asks(tmp_path: Path) -> None:
    async with ProcessWatchdog() as keeper:
        inmate = await AgentLauncher(tmp_path, {}, dict, ResourceLimits(), [], {}, keeper).start(
            "sh", "-c", "sleep 600 & echo $!"
        )
        left = int(await inmate.readline())
        await asyncio.to_thread(until, lambda: is_alive(left), False)
        await inmate.stop()


@pytest.mark.integration
async def test_one_that_is_given_up_as_it_starts_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "private"))
    place = AgentLauncher(tmp_path, {}, dict, ResourceLimits(), [], {}, ProcessWatchdog())
    with pytest.raises(AgentStartError, match="cannot be started"):
        await place.start("true")
    (tmp_path / "private").mkdir()
    before = set(Path("/proc/self/fd").iterdir())
    starting = asyncio.create_task(place.start("sleep", "600"))
    await asyncio.sleep(0)
    assert list((tmp_path / "private").iterdir())
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not list((tmp_path / "private").iterdir()) and set(Path("/proc/self/fd").iterdir()) <= before


LOCKED = """
import os, pathlib, sys
from lightningbus.runners.agent.process import remove_directory
place = pathlib.Path(sys.argv[1])
(place / "a" / "b" / "c").mkdir(parents=True)
(place / "a" / "file").touch()
for closed in ("a/b", "a"):
    (place / closed).chmod(0)
remove_directory(place)
"""


@pytest.mark.integration
def test_directories_that_an_agent_closed_are_removed_too(tmp_path: Path) -> None:
    user = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.getuid() == 0 else []
    if user and (why := usable(*user)):
        pytest.skip(why)
    subprocess.run([*user, sys.executable, "-c", LOCKED, str(tmp_path / "x")], cwd=ROOT, check=True)
    assert not (tmp_path / "x").exists()


def test_an_interpreter_that_stands_anywhere_lets_nothing_into_the_sandbox(tmp_path: Path) -> None:
    python = tmp_path / "home" / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    installed = str(Path(sys.executable).resolve().parents[1])
    assert sandbox_paths(python)["venv"] == installed == sandbox_paths(python)["base"]
    (tmp_path / "pyvenv.cfg").touch()
    assert sandbox_paths(python)["venv"] == str(tmp_path)


def test_a_signal_that_a_sandbox_hands_on_is_known() -> None:
    limits = ResourceLimits(memory_limit_gib=2)
    for code in (-signal.SIGSEGV, 128 + signal.SIGSEGV):
        assert limits.explain_exit(code) == f"its process ended with {code}; the limit is memory_limit_gib: 2"
    assert limits.explain_exit(3) == "its process ended with 3"


def documented() -> dict[str, Any]:
    """The sandbox of the page, where this machine can build it."""
    if why := usable("bwrap", "--ro-bind", "/", "/", "--unshare-all", "--proc", "/proc"):
        pytest.skip(why)
    (block,) = [part.split("```")[0] for part in BRING.read_text().split("```yaml\n") if "bwrap" in part]
    settings: dict[str, Any] = yaml.safe_load(block)
    return settings


KNOCKS = "import json, hostile; print(json.dumps(hostile.knocks(json.load(open(0)))))"


def reaches(family: int, address: Any) -> bool:
    """Whether this process does, which is in no sandbox."""
    with socket.socket(family, socket.SOCK_STREAM) as caller:
        return caller.connect_ex(address) == 0


@pytest.mark.parametrize("program", [False, True], ids=["function", "program"])
async def test_the_documented_sandbox_reaches_the_gateway_and_nothing_else(
    bus: Bus, nats_url: str, engine: ScriptedEngine, tmp_path: Path, program: bool
) -> None:
    """Neither bus, ClickHouse, a node, vLLM nor another network; its model and its telemetry work as ever."""
    sandbox = documented()
    (tmp_path / "config.json").write_text('{"vocab_size": 100}')
    settings = InferenceSettings(
        model_path=tmp_path, work_dir=tmp_path / "work", vllm_command=[sys.executable, STAND_IN]
    )
    async with serve_readonly(tmp_path / "store") as store, VllmEngine(settings) as vllm:
        await vllm.start()
        _, (steering,) = ports_and_sockets(child(STAND_IN))
        names = {"bus": nats_url, "clickhouse": store, "node": engine.address}
        addresses = {name: (urlsplit(url).hostname, urlsplit(url).port) for name, url in names.items()}
        sockets = {"vllm": str(steering)}
        for address in addresses.values():
            assert reaches(socket.AF_INET, address), "from outside it is there"
        assert reaches(socket.AF_UNIX, sockets["vllm"])
        addresses["internet"] = ("192.0.2.1", 443)
        agent: dict[str, Any] = {"entrypoint": "hostile:knocks"}
        if program:
            agent = {"command": [sys.executable, "-c", KNOCKS]}
        async with running(bus, **agent, **sandbox):
            await TaskPublisher(bus).publish_task(task(input={"addresses": addresses, "sockets": sockets}))
            (batch,) = await ended(bus)
    reported = result_of(batch)
    closed = dict.fromkeys(names, "ECONNREFUSED") | {"internet": "ENETUNREACH", "vllm": "ENOENT"}
    assert reported["answers"] == closed
    assert (reported["asked"], reported["streamed"], reported["telemetry"]) == ("xx", "xx", 200)
    assert len(engine.requests) == 2 and "seen" in {span.name for span in batch.spans}


@pytest.mark.integration
async def test_a_dry_run_starts_the_agent_in_its_sandbox() -> None:
    settings = RunnerSettings.model_validate({"entrypoint": "hostile:knocks", "working_dir": AGENTS, **documented()})
    trial = TrialTask(TaskInput("t", {"addresses": {}, "sockets": {}}), "train", "policy", HANG_SECONDS, {})
    (summary,) = await try_agent(settings, trial)
    assert "hostile:knocks: task 't' with scripted answers: 2 model calls, reward 1" in summary


async def test_a_directory_too_long_for_the_gateways_socket_is_one_sentence(
    bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("x" * 100)))
    Path(tempfile.gettempdir()).mkdir()
    with pytest.raises(AgentStartError, match=r"TMPDIR: .* is too long for a Unix socket: set a shorter one"):
        async with running(bus, entrypoint="hostile:tells", sandbox_command=["env", "SOCKET={gateway}"]):
            pass
    assert not list(Path(tempfile.gettempdir()).iterdir())


RELAYED = """
import os, sys, urllib.request
try:
    os.wait()
except ChildProcessError:
    print("no child that it does not know")
print(urllib.request.urlopen(sys.argv[1]).read().decode())
sys.exit(7)
"""


@pytest.mark.integration
async def test_a_relay_hands_on_what_comes_and_becomes_the_program(tmp_path: Path) -> None:
    async def much(request: web.Request) -> web.Response:
        return web.Response(text="x" * 1_000_000)

    app = web.Application()
    app.router.add_get("/", much)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.UnixSite(runner, str(tmp_path / "socket")).start()
    address = f"127.0.0.1:{free_port()}"
    relay = [sys.executable, "-I", str(RELAY_SCRIPT), str(tmp_path / "socket"), address]
    command = [*relay, sys.executable, "-c", RELAYED, f"http://{address}/"]
    process = await spawn(*command, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    assert out.split() == [*b"no child that it does not know".split(), b"x" * 1_000_000] and process.returncode == 7
    await kill_group(process)
    process = await spawn(*relay, str(tmp_path / "nothing"), stderr=asyncio.subprocess.PIPE)
    _, printed = await process.communicate()
    assert printed.decode().splitlines() == [f"{tmp_path}/nothing cannot be started: No such file or directory"]
    await kill_group(process)
    await runner.cleanup()


async def test_the_documented_bubblewrap_hides_secrets_other_rollouts_and_other_processes(
    bus: Bus, engine: ScriptedEngine, tmp_path: Path
) -> None:
    block = documented()
    (key := tmp_path / "inference-api.key").write_text("secret" * 8)
    paths = [str(key), f"/proc/{os.getpid()}", str(ROOT / "runners" / "host.py"), "/usr/bin/env"]
    async with running(bus, entrypoint="hostile:tells", concurrency=2, **block):
        await TaskPublisher(bus).publish_task(task(id="a", input={"paths": paths}))
        (first,) = await ended(bus)
        other = result_of(first)["tmp"]
        await TaskPublisher(bus).publish_task(task(id="b", input={"paths": [other]}))
        await TaskPublisher(bus).publish_task(task(id="c", input={"paths": [other]}))
        others = [result_of(batch) for batch in await ended(bus, 2)]
    assert result_of(first)["readable"] == ["/usr/bin/env"]
    assert all(reported["readable"] == ([other] if reported["tmp"] == other else []) for reported in others)


@pytest.mark.parametrize(
    "agent",
    [["--command", f"{sys.executable} hostile.py"], ["--entrypoint", "hostile:spies"]],
    ids=["program", "function"],
)
async def test_an_agent_can_neither_look_into_its_runner_nor_outlive_it(
    bus: Bus, nats_url: str, engine: ScriptedEngine, agent: list[str]
) -> None:
    """Root without its capabilities is a user like any other."""
    user = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.getuid() == 0 else []
    if user and (why := usable(*user)):
        pytest.skip(why)
    runner = [
        sys.executable,
        "-m",
        "lightningbus",
        "runner",
        "--bus",
        nats_url,
        "--working-dir",
        str(AGENTS),
        "-n",
        "1",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    process = await asyncio.create_subprocess_exec(*user, *runner, *agent, env=environment, start_new_session=True)
    try:
        await TaskPublisher(bus).publish_task(task())
        (batch,) = await ended(bus)
        reported = result_of(batch)
        assert reported["opened"] == [] and reported["parent"] == process.pid
        if agent[0] == "--command":  # its process is gone, and so is all that it left
            await asyncio.to_thread(until, lambda: is_alive(reported["daemon"]), False)
        assert process.returncode is None
    finally:
        process.terminate()
        await process.wait()
    await asyncio.to_thread(until, lambda: is_alive(reported["daemon"]), False, 10)
