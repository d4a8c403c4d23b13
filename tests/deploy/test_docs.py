"""What the pages for operators say: every metric, and commands that are ours or say what they need."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from prometheus_client import Counter, Gauge, Histogram

from docs.reference.pages import PARTS, GeneratedPart
from lightningbus.bus.streams.specs import BUCKET, STREAMS
from lightningbus.common.observability import metrics
from lightningbus.common.observability.metric_registry import METRIC_DOCS
from lightningbus.run.preflight.job_checks import parse_job
from lightningbus.run.settings.run_file import RunSettings, validate_settings
from lightningbus.schemas import subjects
from lightningbus.schemas.codec import VERSION, encode
from lightningbus.store.settings import StoreSettings
from tests.commands import environment
from tests.deploy.commands import ROOT, Commands
from tests.polling import HANG_SECONDS
from tests.schemas.test_codec import CALL, TASK_BYTES

OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
DEPLOYMENT = (ROOT / "docs" / "deployment.md").read_text()
ELSEWHERE = {
    "docker": "# needs Docker",
    "kubectl": "# needs a cluster",
    "nats-server": "# on ",
    "torchrun": "# on ",
}
"""How a block begins whose commands are not ours; tests/hosts runs those of the last two."""
ANYWHERE = {"curl", "make", "rollouts", "export", "pip", "source", "python", "cp", "cd"}


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_generated_parts_of_pages_are_as_the_code_has_them(part: GeneratedPart) -> None:
    assert part.read() == part.render(), "`python -m docs.reference` writes it"


def test_every_metric_says_when_it_moves_and_what_to_do() -> None:
    for entry in METRIC_DOCS:
        assert (
            entry.name.startswith("lightningbus_") and entry.description.endswith(".") and entry.runbook.endswith(".")
        )
    assert (
        len(METRIC_DOCS)
        == len({entry.name for entry in METRIC_DOCS})
        == sum(isinstance(metric, Counter | Gauge | Histogram) for metric in vars(metrics).values())
    )


def test_the_page_of_the_wire_has_every_event_field_and_the_golden_bytes() -> None:
    page = (ROOT / "docs" / "wire.md").read_text()
    unwrapped = page.replace("\n", "")
    assert TASK_BYTES.hex() in unwrapped and encode(CALL).hex() in unwrapped
    for name in (stream.name for stream in STREAMS if stream.name != BUCKET):
        assert f"| {name} |" in page
    for subject in (subjects.ALERT, subjects.TRAIN_ROLLOUT, subjects.EVAL_ROLLOUT, subjects.TASK_PUBLISHED):
        assert f"`{subject}`" in page
    assert f"`{subjects.SCHEMA_HEADER}`" in page and f"Task/{VERSION}" in page


def test_every_setting_is_in_the_page_with_what_it_is_for() -> None:
    page = (ROOT / "docs" / "settings.md").read_text()
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| `")]
    assert len(rows) > 100
    assert not [row[0] for row in rows if not row[2].strip(" |")], "these say nothing of what they are for"


def test_links_lead_somewhere() -> None:
    pages = [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("benchmarks/*.md"),
        *ROOT.glob("examples/*.md"),
        *ROOT.glob("examples/*/*.md"),
    ]
    for page in pages:
        for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text()):
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), f"{page.name}: {link}"
            if anchor:
                titles = re.findall(r"^#+ (.+)$", target.read_text(), re.M)
                assert anchor in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}, link


def test_the_pages_install_torch_as_make_does() -> None:
    (pinned,) = set(re.findall(r"torch==\S+", (ROOT / "Makefile").read_text()))
    assert (
        f"pip install {pinned} && pip install --no-deps --require-hashes --requirement requirements/gpu.lock"
        in DEPLOYMENT
    )
    assert set(re.findall(r"torch==\S+", DEPLOYMENT)) == {pinned}
    assert f"pip install {pinned}" in (ROOT / "deploy" / "Dockerfile").read_text()


def test_the_readmes_run_file_is_a_training_job() -> None:
    (block,) = re.findall(r"```yaml\n(# run.yaml.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert parse_job(validate_settings(RunSettings, yaml.safe_load(block), "README.md"), "README.md").learner.max_steps


@pytest.mark.parametrize("page", [OPERATIONS, DEPLOYMENT], ids=["operations", "deployment"])
def test_every_command_of_a_page_is_ours_or_says_what_it_needs(page: str, commands: Commands) -> None:
    ours = 0
    for block in re.findall(r"```sh\n(.*?)```", page, re.S):
        lines = [line for line in block.splitlines() if line.strip()]
        for line in lines:
            words = shlex.split(line, comments=True)
            if not words or words[0] in ANYWHERE:
                continue
            if words[0] in ELSEWHERE:
                assert lines[0].startswith(ELSEWHERE[words[0]]), line
                continue
            assert words[0] == "lightningbus", line
            commands.begun(words[1:], {})
            ours += 1
    assert ours >= 2


def test_the_address_of_clickhouse_is_an_option_else_in_the_environment_else_a_setting(commands: Commands) -> None:
    option, setting, named = (f"http://{name}:8123" for name in ("option", "setting", "named"))
    file = {"/etc/lightningbus/store.yaml": f"url: {setting}"}
    for words, expected in (
        (["--url", option, "--settings", *file], option),
        (["--settings", *file], named),
    ):
        begun = commands.begun(["store", "--bus", "nats://bus:4222", *words], file, url=named)
        assert isinstance(begun, StoreSettings) and begun.url == expected
    begun = commands.begun(["store", "--bus", "nats://bus:4222", "--settings", *file], file)
    assert isinstance(begun, StoreSettings) and begun.url == setting
    begun = commands.begun(["store", "--bus", "nats://bus:4222"], {})
    assert isinstance(begun, StoreSettings) and begun.url is None


def test_the_bus_is_reached_under_names_its_certificate_has() -> None:
    matches = re.findall(r"^lightningbus bus create-users .*", DEPLOYMENT, re.M)
    named = {host for line in matches for host in re.findall(r"--host ([\w.]+)", line)} | {"localhost"}
    assert set(re.findall(r"nats://([\w.]+):4222", DEPLOYMENT)) == named


@pytest.mark.integration
def test_the_bus_of_several_machines_lets_in_whom_the_page_says(tmp_path: Path) -> None:
    block = re.search(r"## Several machines\n.*?```sh\n(lightningbus .*?)```", DEPLOYMENT, re.S)
    assert block is not None
    built, served, *_, request = (shlex.split(line) for line in block[1].splitlines())

    def start(words: list[str]) -> "subprocess.Popen[str]":
        command = [sys.executable, "-P", "-m", *words]
        return subprocess.Popen(
            command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def end(words: list[str]) -> tuple[int, str]:
        process = start(words)
        out, err = process.communicate(timeout=HANG_SECONDS)
        return process.returncode, out + err

    code, text = end(built)
    assert code == 0, text
    server = start([*served[: served.index("--dir")], "--dir", "bus", "--port", "0"])
    assert server.stdout is not None
    try:
        url = server.stdout.readline().removeprefix("bus: ").strip()
        assert url.startswith("nats://127.0.0.1:"), url
        request = [url if word.startswith("nats://") else word for word in request]
        code, text = end(request)
        assert code == 0, text
        assert request[1] == "--credentials"
        code, text = end([request[0], *request[3:]])
        assert code != 0, text
    finally:
        server.terminate()
        server.communicate(timeout=HANG_SECONDS)
