"""A family's tiny model trained to its third step: learner, vLLM, runner and agent over a bus, a swap before each step.

``python -m tests.families.three_steps NAME...`` prints, a line for each family, how far engine and learner are apart at
each step. All roles but vLLM and the agent are in one process, forked after the packages were imported: a family takes
a third of what a run of separate processes takes.
"""

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import asynccontextmanager
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from lightningbus.inference.engine import vllm_server
from tests.families.forked_server import ForkedServer

STEPS = 3
MAX_SECONDS = 900.0
"""Longest training of a family on a busy machine."""
NUM_PROCESSES = 3
"""Families that are trained at once; each waits for its processes most of the time."""
TEXT_ALONE = ["--language-model-only"]
"""Argument of vLLM for models that read images too; the tiny ones have no files for the processing of images."""
METRIC = "rollout_corr/log_ppl_abs_diff"
AGENT = """
import json
import os
from urllib.request import ProxyHandler, Request, build_opener


def solve(task):
    body = {"model": "policy", "messages": [{"role": "user", "content": task["question"]}], "max_tokens": 16}
    headers = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"}
    request = Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode(), headers)
    with build_opener(ProxyHandler({})).open(request) as answer:
        text = json.load(answer)["choices"][0]["message"]["content"] or ""
    return len(set(text)) / 16
"""
VARIABLES = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}


def train_families(names: Iterable[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Train families, some at once; yield each with the mean difference of engine and learner at each step.

    They are in nats per token. Step n trains on tokens that the engine sampled after swap n. A run that ends with an
    error is described by its sentence, as ``refused``.
    """
    import_packages()
    with ProcessPoolExecutor(NUM_PROCESSES, get_context("fork")) as pool:
        for done in as_completed([pool.submit(train_apart, name) for name in names]):
            yield done.result()


async def _train(name: str, directory: Path) -> list[float]:
    from lightningbus.bus.client import Bus
    from lightningbus.bus.embedded.nats_server import nats_server
    from lightningbus.common.aio import first_completed
    from lightningbus.inference import node
    from lightningbus.learner import learner
    from lightningbus.runners import runner
    from tests.families.families import FAMILIES, save_tiny_model
    from tests.learner.conftest import tiny_tokenizer

    model = save_tiny_model(FAMILIES[name], directory / "model")
    tiny_tokenizer(model)
    (directory / "agent.py").write_text(AGENT)
    tasks = [{"id": str(number), "input": {"question": f"{number}?" * 3}} for number in range(8)]
    (directory / "tasks.jsonl").write_text("".join(f"{json.dumps(task)}\n" for task in tasks))
    served, running, trained = _settings(model, directory, TEXT_ALONE if FAMILIES[name].vision else [])
    stop = asyncio.Event()
    async with nats_server(directory / "nats") as server, Bus.connect(server.url, name="families") as bus:
        await bus.provision()
        async with _steps(bus) as steps:
            serving = asyncio.gather(node.run(bus, served, stop), runner.run(bus, running, stop))
            try:
                async with asyncio.timeout(MAX_SECONDS):
                    await first_completed(learner.run(bus, trained, asyncio.Event()), asyncio.shield(serving))
                    return [(await anext(steps)).metrics[METRIC] for _ in range(STEPS)]
            finally:
                stop.set()
                await asyncio.gather(serving, return_exceptions=True)


def _settings(model: Path, directory: Path, vllm_args: list[str]) -> tuple[Any, Any, Any]:
    from lightningbus.inference.settings import InferenceSettings
    from lightningbus.learner.settings.learner import LearnerSettings
    from lightningbus.runners.settings import RunnerSettings

    fields: dict[str, Any] = {
        "model_path": model, "tasks": directory / "tasks.jsonl", "checkpoint_dir": directory / "checkpoints",
        "group_size": 4, "groups_per_step": 1, "max_steps": STEPS, "max_staleness": 0, "seq_len": 192, "cpu_threads": 1,
        "rollout_timeout_seconds": MAX_SECONDS,
        "actor": {"optim": {"lr": 1e-3}, "old_log_prob_interval": 1},
    }  # fmt: skip
    return (
        InferenceSettings(
            model_path=model, dtype="float32", max_model_len=192, max_num_seqs=8, cpu_threads=1,
            work_dir=directory / "node", vllm_args=vllm_args,
        ),
        RunnerSettings(entrypoint="agent:solve", working_dir=directory, concurrency=2),
        LearnerSettings.model_validate(fields),
    )  # fmt: skip


@asynccontextmanager
async def _steps(bus: Any) -> AsyncIterator[AsyncIterator[Any]]:
    """Yield the training steps that are published from now on."""
    from lightningbus.bus.streams.specs import STORE_EVENTS
    from lightningbus.schemas.training import TrainingStep

    consumer = replace(STORE_EVENTS, durable="listener")
    await bus.ensure_consumer(consumer)

    async def steps() -> AsyncIterator[Any]:
        async for message in puller:
            event = message.event()
            await message.ack()
            if isinstance(event, TrainingStep):
                yield event

    async with bus.pull(consumer, slots=8) as puller:
        yield steps()


def train_apart(name: str) -> tuple[str, dict[str, Any]]:
    """Train a family in a fork of this process; return its name and result."""
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.close(read)
        os.dup2(2, 1)  # what libraries print is no result
        server = ForkedServer()
        vars(vllm_server)["spawn"] = server.spawn
        with os.fdopen(write, "w") as out, tempfile.TemporaryDirectory(prefix="family-") as directory:
            try:
                result: dict[str, object] = {"differences": asyncio.run(_train(name, Path(directory)))}
            except Exception as error:  # vLLM and a model's code may raise anything
                result = {"refused": f"{type(error).__name__}: {' '.join(str(error).split())[-300:]}"}
            json.dump(result, out)
            server.kill()
        os._exit(0)  # threads of a trainer may wait for ever
    os.close(write)
    with os.fdopen(read) as source:
        text = source.read()
    os.waitpid(child, 0)
    if not text:
        raise RuntimeError(f"{name} gave no result")
    return name, json.loads(text)


def import_packages() -> None:
    """Set the environment and import what each fork needs."""
    os.environ.update(VARIABLES)
    import vllm.entrypoints.openai.api_server
    import vllm.v1.engine.async_llm
    import vllm.v1.worker.cpu_worker  # noqa: F401

    import lightningbus.inference.node
    import lightningbus.learner.learner
    import lightningbus.learner.training.verl_trainer
    import lightningbus.runners.runner  # noqa: F401


def main() -> None:
    """Train the families that the command line names."""
    for name, result in train_families(sys.argv[1:]):
        print(name, json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
