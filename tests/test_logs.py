"""Logs leave out what libraries report of themselves and no reader needs."""

import json
import logging
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from lightningbus.learner.model_check.probe import make_short_probe
from tests.learner.conftest import tiny_tokenizer
from tests.polling import HANG_SECONDS

REPORTS = """
import logging, sys, warnings
from lightningbus.common.observability.logs import configure_logging
configure_logging(verbose="--verbose" in sys.argv)
for name in ("verl.plugin.platform", "/site-packages/verl/a.py", "lightningbus.learner", "verlain"):
    logging.getLogger(name).info("%s reports", name)
    logging.getLogger(name).warning("%s warns", name)
for text in ("megatron engine is not available: no module", "this is deprecated"):
    warnings.warn_explicit(text, UserWarning, "verl/workers/engine/__init__.py", 1, "verl.workers.engine")
"""

PRINTS = """
import subprocess, sys, threading
from tqdm import tqdm
from lightningbus.common.observability.log_format import LogFormat
from lightningbus.common.observability.logs import configure_logging, log_standard_output
configure_logging(form=LogFormat.json)
log_standard_output()
for _ in tqdm(range(100), desc="Loading weights", mininterval=0):
    pass
print("a library prints", flush=True)
print("two", "lines\\nin one", file=sys.stderr)
worker = threading.Thread(target=print, args=("of a thread",))
worker.start()
worker.join()
raise SystemError("the end")
"""


def lines_of(*options: str) -> str:
    command = [sys.executable, "-c", REPORTS, *options]
    return subprocess.run(command, capture_output=True, text=True, check=True).stderr


@pytest.mark.integration
def test_verl_is_heard_when_it_warns_and_always_with_verbose() -> None:
    lines = lines_of()
    for name in ("verl.plugin.platform", "/site-packages/verl/a.py"):
        assert f"{name} warns" in lines and f"{name} reports" not in lines
    assert "lightningbus.learner reports" in lines and "verlain reports" in lines
    assert "this is deprecated" in lines and "engine is not available" not in lines
    verbose = lines_of("--verbose")
    assert "verl.plugin.platform reports" in verbose and "engine is not available" in verbose


@pytest.mark.integration
def test_what_libraries_print_is_an_object_too() -> None:
    done = subprocess.run([sys.executable, "-c", PRINTS], capture_output=True, text=True, timeout=HANG_SECONDS)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    bar, *printed, end = [(line["logger"], line["message"]) for line in lines]
    assert done.stdout == "" and bar[0] == "stderr" and bar[1].startswith("Loading weights: 100%")
    assert printed == [
        ("stdout", "a library prints"),
        ("stderr", "two lines"),
        ("stderr", "in one"),
        ("stdout", "of a thread"),
    ]
    assert end == ("lightningbus", "ended by SystemError: the end") and "Traceback" in lines[-1]["exception"]


@pytest.mark.integration
@pytest.mark.parametrize(
    ("arguments", "announcement"),
    [(["bus", "--port", "0", "--dir", "bus"], "bus: nats://"), (["ui", "--port", "0"], "UI at http://")],
)
def test_what_a_command_announces_is_an_object(arguments: list[str], announcement: str, tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "lightningbus", "--log-format", "json", *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stderr is not None and process.stdout is not None
        lines = []
        limit = threading.Timer(HANG_SECONDS, process.kill)
        limit.start()
        for line in process.stderr:
            lines.append(line)
            if announcement in line:
                break
        process.send_signal(signal.SIGINT)
        lines += process.stderr.readlines()
        limit.cancel()
        assert process.stdout.read() == "", "and nothing else is printed"
    assert [line for line in lines if json.loads(line)["message"].startswith(announcement)]


def test_the_probe_of_a_model_with_a_short_context_warns_of_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = tiny_tokenizer(tmp_path)
    tokenizer.model_max_length = 32
    tokenizer.save_pretrained(tmp_path)
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    assert make_short_probe(tmp_path, 320, 16)
    assert not [record for record in caplog.records if "longer than" in record.getMessage()]
