"""Settings of the demo for each of its models."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from lightningbus.inference.settings import InferenceSettings
from lightningbus.learner.settings.algorithm import ActorSettings, OptimSettings
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.learner.settings.weights import WeightSettings
from lightningbus.run.evaluation.request import SAMPLINGS
from lightningbus.run.settings.evaluation import EvalSettings
from lightningbus.run.settings.run_file import RunSettings
from lightningbus.runners.settings import RunnerSettings
from lightningbus.schemas.weights.dtypes import Dtype
from lightningbus.store.settings import StoreSettings

PACKAGE = Path(__file__).resolve().parents[2]
EXAMPLE = PACKAGE / "examples" / "calculator"
"""The agent of two calls that trains the model which the demo makes."""
PROJECT = PACKAGE / "templates" / "plain"
"""The agent of one call that trains a pretrained model, as `lightningbus init --model` writes it."""
RUN = "demo"
RUNNERS = 2
SHARED_GPU = ("--gpu-memory-utilization", "0.4")
"""Arguments of a vLLM that leaves the rest of its GPU to the learner."""
SHORT_BLOCKS = ("--block-size", "32")
"""Arguments of a vLLM on the CPU for short prompts: it caches whole blocks, of 128 tokens unless told otherwise."""


@dataclass(frozen=True, slots=True)
class DemoConfig:
    """Model and size of the demo."""

    steps: int
    context: int
    """Most tokens of a prompt and its answer."""
    lr: float
    lr_scheduler_type: str = "constant"
    min_lr_ratio: float = 1.0
    dtype: Dtype | Literal["auto"] = "auto"
    vllm_args: tuple[str, ...] = ()
    checkpoint_interval: int | None = None
    micro_batch_tokens: int = 16384
    """Most tokens of a micro-batch; the logits of a large vocabulary fill memory."""
    train: int = 512
    heldout: int = 100
    groups_per_step: int = 8
    samples: int = 8
    concurrency: int = 8
    """Rollouts that each runner has at once."""
    learner_threads: int = 1
    samples_heldout: int = 2
    """Sampled answers to each held-out task."""
    seed: int = 0
    deadline: float = 60.0
    warm_steps: int = 180
    """Supervised steps of the model that the demo makes."""
    model: Path | None = None
    """Directory of a pretrained model; None: the demo makes a small one."""


TINY = DemoConfig(steps=36, context=128, lr=4e-4, lr_scheduler_type="cosine", min_lr_ratio=0.1, dtype="float32")
PRETRAINED = DemoConfig(
    steps=6,
    context=256,
    lr=8e-5,
    lr_scheduler_type="cosine",
    min_lr_ratio=0.1,
    checkpoint_interval=6,
    micro_batch_tokens=2048,
    heldout=64,
    concurrency=16,
    learner_threads=2,
    samples_heldout=1,
    deadline=600.0,
)


def choose_size(model: Path | None, steps: int | None, seed: int, has_gpu: bool) -> DemoConfig:
    """Return the demo of a model; ``steps`` None: as many as that model needs.

    ``has_gpu``: engine and learner share a GPU.
    """
    size = TINY if model is None else PRETRAINED
    arguments = SHARED_GPU if has_gpu else () if model is None else SHORT_BLOCKS
    return replace(size, model=model, steps=size.steps if steps is None else steps, seed=seed, vllm_args=arguments)


def build_settings(job: DemoConfig, work: Path) -> tuple[RunSettings, LearnerSettings, EvalSettings]:
    """Build the settings of all roles; tasks lie in ``work``, and so does a model that the demo makes."""
    model = job.model or work / "model"
    node = InferenceSettings(
        model_path=model,
        dtype=job.dtype,
        max_model_len=job.context,
        max_num_seqs=32,
        cpu_threads=1,
        vllm_args=list(job.vllm_args),
    )
    optim = OptimSettings(lr=job.lr, lr_scheduler_type=job.lr_scheduler_type, min_lr_ratio=job.min_lr_ratio)
    learner = LearnerSettings(
        run=RUN,
        model_path=model,
        tasks=work / "train.jsonl",
        group_size=job.samples,
        groups_per_step=job.groups_per_step,
        max_steps=job.steps,
        max_staleness=1,
        rollout_timeout_seconds=job.deadline,
        sampling_params=SAMPLINGS["sampled"],
        seed=job.seed,
        cpu_threads=job.learner_threads,
        checkpoint_dir=work.parent / "checkpoints",
        checkpoint_interval=job.checkpoint_interval,
        seq_len=job.context,
        weights=WeightSettings(dtype=job.dtype),
        actor=ActorSettings(optim=optim, ppo_max_token_len_per_gpu=job.micro_batch_tokens),
    )
    agent = EXAMPLE if job.model is None else PROJECT
    runners = [RunnerSettings(entrypoint="agent:solve", working_dir=agent, concurrency=job.concurrency)] * RUNNERS
    settings = RunSettings(name=RUN, store=StoreSettings(http_port=0), inference=[node], runners=runners)
    return settings, learner, EvalSettings(tasks=work / "heldout.jsonl", samples=job.samples_heldout)
