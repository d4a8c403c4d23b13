"""What roles import: a runner, the store and a node need no torch, a learner no vLLM."""

from pathlib import Path

import pytest

from tests.commands import ROOT, python

pytestmark = pytest.mark.integration

HEAVY = ("torch", "vllm", "verl", "transformers", "ray")
LIST_IMPORTED = "import sys, {module}; print(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
LEARNER_WITHOUT_VLLM = """
import sys
from pathlib import Path
sys.path.insert(0, {root!r})
sys.modules["vllm"] = None  # whoever imports it gets an ImportError
from lightningbus.learner.training.verl_trainer import VerlTrainer
from tests.learner.conftest import settings_for, tiny_model
from tests.learner.test_trainer import batch_of, conversations
trainer = VerlTrainer(settings_for(tiny_model(Path(sys.argv[1]))))
print(trainer.step(batch_of(trainer, conversations()))["actor/grad_norm"])
"""


@pytest.mark.parametrize(
    "module",
    [
        "lightningbus.runners.runner",
        "lightningbus.runners.gateway.server",
        "lightningbus.store.service",
        "lightningbus.store.ui.server",
        "lightningbus.inference.node",
        "lightningbus.bus.embedded.nats_server",
        "lightningbus.run.processes.stack",
        "lightningbus.cli.app",
    ],
)
def test_a_role_without_a_model_imports_no_package_for_models(module: str, tmp_path: Path) -> None:
    imported = set(python("-c", LIST_IMPORTED.format(module=module), cwd=tmp_path).split())
    assert module.partition(".")[0] in imported and not imported & set(HEAVY)


@pytest.mark.parametrize(
    "module", ["lightningbus.learner.learner", "lightningbus.auditor.auditor", "lightningbus.run.jobs.train_job"]
)
def test_a_role_with_a_model_imports_no_engine(module: str, tmp_path: Path) -> None:
    imported = set(python("-c", LIST_IMPORTED.format(module=module), cwd=tmp_path).split())
    assert module.partition(".")[0] in imported and not imported & {"vllm", "ray"}


def test_a_question_to_a_runs_files_imports_neither_the_bus_nor_the_settings_of_roles(tmp_path: Path) -> None:
    module = "lightningbus.cli.app, lightningbus.cli.commands.results.query, lightningbus.run.run_data.run_data"
    imported = set(python("-c", LIST_IMPORTED.format(module=module), cwd=tmp_path).split())
    assert "clickhouse_connect" in imported and not imported & {"nats", "aiohttp", "pydantic", "uvloop"}
    script = LIST_IMPORTED.format(module="lightningbus.store.embedded.serving")
    assert "clickhouse_connect" not in python("-c", script, cwd=tmp_path).split(), "the process that serves the files"


@pytest.mark.long
def test_a_learner_trains_where_vllm_cannot_be_imported(tmp_path: Path) -> None:
    output = python("-c", LEARNER_WITHOUT_VLLM.format(root=str(ROOT)), tmp_path / "model", cwd=tmp_path)
    assert float(output.split()[-1]) > 0
