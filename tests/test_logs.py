"""Logs leave out what libraries report of themselves and no reader needs."""

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from lightningbus.learner.model_check.probe import make_probe
from tests.learner.conftest import tiny_tokenizer

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


def test_the_probe_of_a_model_with_a_short_context_warns_of_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = tiny_tokenizer(tmp_path)
    tokenizer.model_max_length = 32
    tokenizer.save_pretrained(tmp_path)
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    assert make_probe(tmp_path, 320, 16)
    assert not [record for record in caplog.records if "longer than" in record.getMessage()]
