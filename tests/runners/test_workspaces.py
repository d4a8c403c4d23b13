"""A workspace for each rollout: fresh files, what an agent changed, a grade, and nothing that is left."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lightningbus.bus.client import Bus
from lightningbus.common.processes.procfs import is_alive
from lightningbus.run.errors import UserError
from lightningbus.run.preflight.trial_rollout import TrialTask, try_agent
from lightningbus.runners.settings import RunnerSettings
from lightningbus.runners.workspaces.directory import RunnerDirectory
from lightningbus.schemas.semconv import attributes
from lightningbus.schemas.spans import SpanBatch
from lightningbus.tasks.task_loading import TaskInput
from lightningbus.tasks.task_publisher import TaskPublisher
from tests.polling import HANG_SECONDS, until
from tests.runners.conftest import ScriptedEngine, ended, running, task
from tests.runners.test_sandbox import usable

BUBBLEWRAP = usable("bwrap", "--ro-bind", "/", "/", "--unshare-all", "--proc", "/proc")
PROVIDERS = [
    "process",
    pytest.param("bubblewrap", marks=pytest.mark.skipif(bool(BUBBLEWRAP), reason=BUBBLEWRAP)),
]
PROGRAM = "import json, os, sys, pathlib; task = json.load(sys.stdin)\n{}\nprint(json.dumps(result))"
CHECK = "import sys; sys.path.insert(0, '.'); from calc import add; sys.exit(add(2, 3) != 5)"
GRADE = {"files": "hidden", "command": ["python3", "-I", "tests/check.py"]}


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A repository with a bug, an archive of it, and hidden tests."""
    place = tmp_path / "sources"
    repository = place / "calc"
    (repository / "tests").mkdir(parents=True)
    (repository / "calc.py").write_text("def add(left, right):\n    return left - right\n")
    (repository / "tests" / "check.py").write_text("raise SystemExit(1)\n")
    (place / "hidden" / "tests").mkdir(parents=True)
    (place / "hidden" / "tests" / "check.py").write_text(CHECK)
    return place


def commit(repository: Path, message: str) -> str:
    """Commit all files of a directory; returns the commit."""
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", message]):
        subprocess.run([*git, *words], cwd=repository, check=True)
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=repository, check=True, capture_output=True, text=True)
    return done.stdout.strip()


async def play(
    bus: Bus, sources: Path, inputs: Sequence[dict[str, Any]], code: str, provider: str = "process", **settings: Any
) -> list[SpanBatch]:
    """Run a program on each input; return how they ended, in order of the inputs."""
    root = sources.parent / "workspaces"
    workspace = {"provider": provider, "sources": [sources], "directory": root, **settings.pop("workspace", {})}
    settings = {"command": ["/usr/bin/python3", "-c", PROGRAM.format(code)], **settings}
    async with running(bus, workspace=workspace, **settings):
        for number, each in enumerate(inputs):
            await TaskPublisher(bus).publish_task(task(id=f"t{number}", input=each, max_attempts=2))
        batches = await ended(bus, len(inputs))
    assert list(root.iterdir()) == [], "nothing is left"
    return sorted(batches, key=lambda batch: batch.task_id)


def artifacts(batch: SpanBatch) -> dict[str, str]:
    """Contents of artifacts by name."""
    spans = [span.attributes for span in batch.spans if attributes.ARTIFACT_NAME in span.attributes]
    return {fields[attributes.ARTIFACT_NAME]: fields[attributes.ARTIFACT_CONTENT] for fields in spans}


def outcome(batch: SpanBatch) -> tuple[str, float | None, dict[str, float], str]:
    """The outcome of an attempt, its reward and rewards, and its error."""
    assert batch.end is not None
    return batch.end.outcome, batch.end.reward, batch.end.rewards, batch.end.error


FIXES = """
assert os.getcwd() == os.environ['WORKSPACE'] and 'workspace' not in task
file = pathlib.Path('calc.py')
assert '-' in file.read_text(), 'a fresh copy'
if task['fix']: file.write_text(file.read_text().replace('-', '+'))
pathlib.Path('out').mkdir(); pathlib.Path('out/log.txt').write_text('done')
result = {'told': task}
"""


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("method", ["auto", "copy"])
async def test_each_rollout_has_a_fresh_copy_and_hidden_tests_grade_it(
    bus: Bus, engine: ScriptedEngine, sources: Path, provider: str, method: str
) -> None:
    spec = {"directory": "calc", "grade": GRADE, "artifacts": ["out/*"]}
    inputs = [{"fix": True, "workspace": spec}, {"fix": False, "workspace": spec}, {"fix": True, "workspace": spec}]
    fixed, left, again = await play(bus, sources, inputs, FIXES, provider, workspace={"copy_method": method})
    assert outcome(fixed) == outcome(again) == ("ok", 1.0, {"tests_passed": 1.0}, "")
    assert outcome(left) == ("ok", 0.0, {"tests_passed": 0.0}, "")
    assert "-    return left - right\n+    return left + right\n" in artifacts(fixed)["workspace.diff"]
    assert artifacts(fixed)["out/log.txt"] == "done" and "calc.py" not in artifacts(left)["workspace.diff"]
    assert "left - right" in (sources / "calc" / "calc.py").read_text(), "the original is as it was"


@pytest.mark.parametrize("kind", ["git", "tar", "zip"])
async def test_a_commit_and_archives_are_workspaces(bus: Bus, engine: ScriptedEngine, sources: Path, kind: str) -> None:
    spec: dict[str, Any] = {"archive": f"calc.{kind}"}
    if kind == "git":
        spec = {"git": "calc", "commit": commit(sources / "calc", "first")}
        (sources / "calc" / "calc.py").write_text("later")
        commit(sources / "calc", "later")
    else:
        shutil.make_archive(str(sources / "calc"), kind, sources / "calc")
    looks = "result = {'reward': 1, 'calc': open('calc.py').read(), 'commits': os.popen('git rev-list --all').read()}"
    (batch,) = await play(bus, sources, [{"workspace": spec}], looks)
    assert batch.end is not None and batch.end.outcome == "ok", batch.end
    result = json.loads(batch.end.result)
    assert "left - right" in result["calc"]
    assert result["commits"].split() == ([spec["commit"]] if kind == "git" else []), "no later commit can be read"


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("method", ["auto", "copy"])
async def test_what_an_agent_leaves_cannot_stand_for_the_graders_files(
    bus: Bus, engine: ScriptedEngine, sources: Path, provider: str, method: str
) -> None:
    """Not a file of the same name, not a link in place of its directory, not a result written before."""
    outside = sources.parent / "outside"
    outside.mkdir()
    inputs = [{"how": how, "workspace": {"directory": "calc", "grade": GRADE}} for how in ("file", "link", "gone")]
    fakes = f"""
import shutil
shutil.rmtree('tests')
if task['how'] == 'link': os.symlink({str(outside)!r}, 'tests')
if task['how'] == 'file': os.mkdir('tests'); open('tests/check.py', 'w').write('')
for place in ('../grade', '/grade'):
    if os.path.isdir(place): open(place + '/result.json', 'w').write('1')
result = {{}}
"""
    for batch in await play(bus, sources, inputs, fakes, provider, workspace={"copy_method": method}):
        assert outcome(batch) == ("ok", 0.0, {"tests_passed": 0.0}, ""), batch.task_id
    assert list(outside.iterdir()) == []


def says_rewards(number: int) -> list[str]:
    """The command of a grader with so many rewards by name."""
    rewards = json.dumps({f"part_{at}": 0.5 for at in range(number)})
    return ["sh", "-c", f"echo '{rewards}' > $RESULT_FILE"]


async def test_a_graders_failure_is_never_a_reward(bus: Bus, engine: ScriptedEngine, sources: Path) -> None:
    graders: list[tuple[dict[str, Any], str, str]] = [
        ({"command": ["sleep", "600"], "timeout_seconds": 0.5}, "reward_timeout", "the grader did not end in 0.5 s"),
        ({"command": ["/no/such"]}, "infra_error", "the grader cannot be started: status 127"),
        ({"command": ["sh", "-c", "kill -9 $$"]}, "infra_error", "the grader was killed"),
        ({"command": ["true"], "needs_result": True}, "infra_error", "the grader wrote no result: status 0"),
        ({"command": ["sh", "-c", "echo NaN > $RESULT_FILE"]}, "infra_error", "the grader's result is none"),
        ({"command": says_rewards(65)}, "infra_error", "at most 64 named rewards, not 65"),
        ({"command": ["true"], "files": "nowhere"}, "poison", "there is no 'nowhere' in"),
    ]
    inputs = [{"workspace": {"directory": "calc", "grade": grade}} for grade, _, _ in graders]
    batches = await play(bus, sources, inputs, "result = 1")
    for batch, (grade, expected, sentence) in zip(batches, graders, strict=True):
        got, reward, _, error = outcome(batch)
        assert (got, reward) == (expected, None) and sentence in error, (grade, batch.end)


async def test_a_graders_result_may_have_parts_and_a_returned_patch_is_applied(
    bus: Bus, engine: ScriptedEngine, sources: Path
) -> None:
    says = 'echo \'{"reward": 0.5, "style": 0.25}\' > $RESULT_FILE'
    parts = {"directory": "calc", "grade": {"command": ["sh", "-c", says]}}
    patch = "--- a/calc.py\n+++ b/calc.py\n@@ -1,2 +1,2 @@\n def add(left, right):\n-    return left - right\n"
    patch += "+    return left + right\n"
    graded = {"directory": "calc", "grade": GRADE}
    inputs = [{"patch": None, "workspace": parts}, {"patch": patch, "workspace": graded}]
    inputs += [{"patch": "none\n", "workspace": graded}]
    many = {"directory": "calc", "grade": {"command": says_rewards(64)}}
    inputs += [{"patch": patch, "workspace": many}]
    named, applied, refused, full = await play(bus, sources, inputs, "result = {'patch': task['patch']}")
    assert outcome(named) == ("ok", 0.5, {"reward": 0.5, "style": 0.25}, "")
    assert outcome(applied) == ("ok", 1.0, {"tests_passed": 1.0, "patch_applies": 1.0}, "")
    assert outcome(full) == ("ok", 0.5, {**{f"part_{at}": 0.5 for at in range(64)}, "patch_applies": 1.0}, "")
    assert outcome(refused) == ("ok", 0.0, {"tests_passed": 0.0, "patch_applies": 0.0}, "")


async def test_a_bad_workspace_costs_its_own_rollout_and_is_not_tried_again(
    bus: Bus, engine: ScriptedEngine, sources: Path
) -> None:
    bad: list[tuple[dict[str, Any], str]] = [
        ({"directory": "nowhere"}, "there is no 'nowhere' in"),
        ({"directory": "../outside"}, "is no path below `workspace.sources`"),
        ({"directory": "/etc"}, "is no path below `workspace.sources`"),
        ({"git": "repository", "commit": "0" * 40}, "has no commit '000"),
        ({"git": "calc"}, "fatal: not a git repository"),
        ({"git": "calc", "commit": "--output=x"}, "names the commit '--output=x', which is none"),
        ({"archive": "out.tar"}, "has a path that leads out: '../out'"),
        ({"archive": "link.tar"}, "has a link that leads out: inner/link"),
        ({"archive": "bomb.tar"}, "has more than 0.001 GiB"),
        ({"archive": "out.zip"}, "has a path that leads out: '../out'"),
        ({"archive": "calc/calc.py"}, "cannot be unpacked"),
        ({"directory": "linked"}, "has a link that leads out: link"),
        ({"directory": "piped"}, "has a file that is not a regular one: pipe"),
        ({"directory": "many"}, "has more than 20 files"),
        ({"directory": "way"}, "leads out of"),
        ({"directory": "calc", "archive": "out.tar"}, "names directory and archive"),
        ({"directroy": "calc"}, "the task's workspace is malformed"),
    ]
    make_bad_sources(sources)
    (sources.parent / "file").touch()
    commit(sources.parent, "the sources lie in a repository, which no task can name")
    inputs = [{"workspace": spec} for spec, _ in bad] + [{"workspace": {"directory": "calc"}}, {}]
    batches = await play(
        bus, sources, inputs, "result = 1", workspace={"max_files": 20, "max_gib": 0.001}, concurrency=4
    )
    results = {batch.task_id: batch for batch in batches}
    for number, (spec, sentence) in enumerate(bad):
        got, reward, _, error = outcome(results[f"t{number}"])
        assert (got, reward) == ("poison", None) and sentence in error, (spec, error)
        assert results[f"t{number}"].attempt == 1
    assert [outcome(results[f"t{number}"])[0] for number in (len(bad), len(bad) + 1)] == ["ok", "ok"]


def make_bad_sources(sources: Path) -> None:
    """Sources that are none."""
    for name in ("linked", "piped", "many", "repository"):
        (sources / name).mkdir()
    (sources / "linked" / "link").symlink_to("../calc/calc.py")
    os.mkfifo(sources / "piped" / "pipe")
    for number in range(21):
        (sources / "many" / str(number)).touch()
    (sources / "repository" / "file").touch()
    commit(sources / "repository", "first")
    (sources / "way").symlink_to("/etc")
    code = """
import io, sys, tarfile, zipfile
def add(file, name, **fields):
    member = tarfile.TarInfo(name)
    for field, value in fields.items(): setattr(member, field, value)
    file.addfile(member, io.BytesIO(b"0" * member.size) if member.isfile() else None)
with tarfile.open("out.tar", "w") as file: add(file, "../out")
with tarfile.open("link.tar", "w") as file: add(file, "inner/link", type=tarfile.SYMTYPE, linkname="../../x")
with tarfile.open("bomb.tar", "w") as file: add(file, "bomb", size=2 * 1024 * 1024)
with zipfile.ZipFile("out.zip", "w") as file: file.writestr("../out", "x")
"""
    subprocess.run([sys.executable, "-c", code], cwd=sources, check=True)


@pytest.mark.skipif(bool(BUBBLEWRAP), reason=BUBBLEWRAP)
async def test_in_bubblewrap_an_agent_sees_neither_sources_nor_other_files(
    bus: Bus, engine: ScriptedEngine, sources: Path
) -> None:
    (sources.parent / "agent").mkdir()
    looks = f"""
seen = {{}}
for place in {[str(sources), str(sources / "hidden"), "/grade"]!r}:
    seen[place] = os.listdir(place) if os.path.isdir(place) else None
import socket
try: socket.create_connection(("192.0.2.1", 443), 1); seen["network"] = True
except OSError as error: seen["network"] = error.errno
told = pathlib.Path("/proc/1/cmdline").read_text()
def read(place):
    try: return len(pathlib.Path(place).read_bytes())
    except OSError: return 0
private = [read("/etc/shadow"), read("/etc/gshadow")]
result = {{"reward": 1, "seen": seen, "here": os.getcwd(), "home": os.environ["HOME"], "files": os.listdir("."),
          "told": told, "private": private, "users": read("/etc/passwd")}}
"""
    inputs = [{"workspace": {"directory": "calc"}}]
    (batch,) = await play(bus, sources, inputs, looks, "bubblewrap", working_dir=sources.parent)
    assert batch.end is not None and batch.end.outcome == "ok", batch.end
    result = json.loads(batch.end.result)
    assert (result["here"], result["home"], sorted(result["files"])) == (
        "/workspace",
        "/home/agent",
        ["calc.py", "tests"],
    )
    assert str(sources.parent / "workspaces") not in result["told"] and "-bind" not in result["told"]
    assert result["private"] == [0, 0] and result["users"] > 0
    assert result["seen"] == {str(sources): [], str(sources / "hidden"): None, "/grade": None, "network": 101}


async def test_a_function_gets_its_workspace_and_its_modules_are_its_own(
    bus: Bus, engine: ScriptedEngine, sources: Path
) -> None:
    """A module of the same name in the workspace is not the agent."""
    agent = sources.parent / "agent"
    agent.mkdir()
    (agent / "calc.py").write_text(
        "import os\ndef solve(task):\n    return {'reward': 1, 'files': sorted(os.listdir()), 'task': task}\n"
    )
    inputs = [{"n": number, "workspace": {"directory": "calc"}} for number in range(2)]
    for number, batch in enumerate(
        await play(bus, sources, inputs, "", command=None, entrypoint="calc:solve", working_dir=agent)
    ):
        assert batch.end is not None and batch.end.outcome == "ok", batch.end
        assert json.loads(batch.end.result) == {"reward": 1, "files": ["calc.py", "tests"], "task": {"n": number}}


async def test_a_rollout_that_fails_keeps_its_diff(bus: Bus, engine: ScriptedEngine, sources: Path) -> None:
    inputs = [{"workspace": {"directory": "calc"}}]
    writes = "open('calc.py', 'a').write('# here')\nsys.exit('I give up')"
    (batch,) = await play(bus, sources, inputs, writes)
    assert outcome(batch)[0] == "agent_error" and "+# here" in artifacts(batch)["workspace.diff"]


DIES = """
import os, signal, subprocess, sys
from pathlib import Path
from lightningbus.run.errors import UserError
from lightningbus.run.preflight.trial_rollout import TrialTask, try_agent
from lightningbus.runners.settings import RunnerSettings
from lightningbus.runners.workspaces.directory import RunnerDirectory
inside = RunnerDirectory(Path(sys.argv[1])).copies / "x"
inside.mkdir()
nothing = subprocess.DEVNULL
left = subprocess.Popen(["sleep", "600"], cwd=inside, start_new_session=True, stdout=nothing, stderr=nothing)
print(left.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.integration
@pytest.mark.skipif(bool(BUBBLEWRAP), reason=BUBBLEWRAP)
async def test_a_dry_run_grades_in_a_workspace_and_names_a_bad_one(sources: Path) -> None:
    fields = {"command": ["/usr/bin/python3", "-c", PROGRAM.format(FIXES)], "working_dir": sources.parent}
    workspace = {"sources": [sources], "directory": sources.parent / "workspaces"}
    settings = RunnerSettings.model_validate({**fields, "workspace": workspace})

    def trial(spec: dict[str, Any]) -> TrialTask:
        return TrialTask(TaskInput("t", {"fix": True, "workspace": spec}), "eval", "policy", HANG_SECONDS, {})

    (summary, *_) = await try_agent(settings, trial({"directory": "calc", "grade": GRADE}))
    assert "task 't' with scripted answers: 0 model calls, reward 1" in summary
    with pytest.raises(UserError, match="there is no 'nowhere' in"):
        await try_agent(settings, trial({"directory": "nowhere"}))
    assert list((sources.parent / "workspaces").iterdir()) == []


@pytest.mark.integration
def test_what_a_dead_runner_left_is_swept_and_a_living_runners_is_not(tmp_path: Path) -> None:
    living = RunnerDirectory(tmp_path)
    dead = subprocess.run([sys.executable, "-c", DIES, str(tmp_path)], capture_output=True, text=True, check=False)
    pid = int(dead.stdout)
    assert len(list(tmp_path.iterdir())) == 2 and Path(f"/proc/{pid}").exists()
    new = RunnerDirectory(tmp_path)
    assert set(tmp_path.iterdir()) == {living.path, new.path}
    until(lambda: is_alive(pid), False)
    for each in (living, new):
        each.close()


ODD = """
import subprocess
os.mkdir('closed'); open('closed/file', 'w').close(); os.chmod('closed', 0)
os.mkfifo('out'); os.symlink('out', 'loop'); open('half\\udcff', 'w').close()
os.makedirs('/'.join(['deep'] * 600))
for _ in range(3): os.chdir('/'.join(['deep'] * 200))
os.makedirs('/'.join(['deeper'] * 500))
result = {}
"""


async def test_files_as_odd_as_an_agent_can_make_them_change_no_reward(
    bus: Bus, engine: ScriptedEngine, sources: Path
) -> None:
    spec = {"directory": "calc", "grade": {"command": ["true"]}, "artifacts": ["*"]}
    (batch,) = await play(bus, sources, [{"workspace": spec}], ODD)
    assert outcome(batch) == ("ok", 1.0, {"tests_passed": 1.0}, "")
