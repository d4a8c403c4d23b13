"""The memory plan of models up to 32 billion parameters; `python -m benchmarks.memory` writes it to docs/scale.md.

Nothing is measured: models are made of configurations without weights.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import Qwen2Config, Qwen3Config, Qwen3MoeConfig

from lightningbus.learner.engine.memory_advice import step_flops
from lightningbus.learner.engine.memory_plan import ModelShape, TrainingShape, plan_memory
from lightningbus.learner.engine.model_shape import read_shape
from lightningbus.learner.settings.algorithm import ActorSettings
from lightningbus.run.preflight.memory_check import GIB, table

PAGE = Path("docs/scale.md")
BEGIN, END = "<!-- plans: begin -->\n", "\n<!-- plans: end -->"
GPU_GIB, ROW, TFLOPS = 80, 8192, 400.0
"""Of one GPU; tokens of the longest sequence; what training is assumed to reach."""
STEP_TOKENS = 128 * ROW
QWEN3: dict[str, Any] = {"vocab_size": 151936, "head_dim": 128, "max_position_embeddings": 40960}


@dataclass(frozen=True, slots=True)
class Case:
    """A model and how it is trained."""

    name: str
    config: Any
    num_ranks: int
    tokens: int = 16384
    engine_share: float = 0.0
    """Of the GPU's memory."""

    @property
    def how(self) -> TrainingShape:
        """With the learner's defaults."""
        return TrainingShape(num_ranks=self.num_ranks, tokens=self.tokens, row_tokens=ROW)


QWEN_32B = Qwen2Config(
    vocab_size=152064, hidden_size=5120, intermediate_size=27648, num_hidden_layers=64, num_attention_heads=40,
    num_key_value_heads=8, tie_word_embeddings=False,
)  # fmt: skip
QWEN_7B = Qwen2Config(
    vocab_size=152064, hidden_size=3584, intermediate_size=18944, num_hidden_layers=28, num_attention_heads=28,
    num_key_value_heads=4, tie_word_embeddings=False,
)  # fmt: skip
CASES = (
    Case("Qwen3-0.6B", Qwen3Config(
        **QWEN3, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16,
        num_key_value_heads=8, tie_word_embeddings=True,
    ), 1, engine_share=0.4),
    Case("Qwen2.5-3B", Qwen2Config(
        vocab_size=151936, hidden_size=2048, intermediate_size=11008, num_hidden_layers=36, num_attention_heads=16,
        num_key_value_heads=2, tie_word_embeddings=True,
    ), 2),
    Case("Qwen2.5-7B", QWEN_7B, 8),
    Case("Qwen2.5-32B", QWEN_32B, 16),
    Case("Qwen3-30B-A3B", Qwen3MoeConfig(
        **QWEN3, hidden_size=2048, intermediate_size=6144, moe_intermediate_size=768, num_hidden_layers=48,
        num_attention_heads=32, num_key_value_heads=4, num_experts=128, num_experts_per_tok=8,
        tie_word_embeddings=False,
    ), 16),
)  # fmt: skip


def render() -> str:
    """The table of the page, in GiB."""
    shapes = [read_shape(case.config) for case in CASES]
    return render_plans(CASES, shapes)


def render_plans(cases: "tuple[Case, ...]", shapes: list[ModelShape]) -> str:
    """Parts as rows, models as columns."""
    plans = [
        plan_memory(shape, case.how, int(case.engine_share * GPU_GIB * GIB))
        for case, shape in zip(cases, shapes, strict=True)
    ]
    parts = [dict(table(plan)) for plan in plans]
    names = list(dict.fromkeys(name for rows in parts for name in rows))
    seconds = [
        step_flops(shape, case.how, STEP_TOKENS, log_prob_share=1 / ActorSettings().old_log_prob_interval)
        / (case.num_ranks * TFLOPS * 1e12)
        for case, shape in zip(cases, shapes, strict=True)
    ]
    rows = [
        ["GiB of each GPU", *(case.name for case in cases)],
        ["---"] * (len(cases) + 1),
        ["parameters, in billions", *(f"{shape.num_params / 1e9:.2f}" for shape in shapes)],
        ["GPUs", *(str(case.num_ranks) for case in cases)],
        ["`ppo_max_token_len_per_gpu`", *(str(case.tokens) for case in cases)],
        *([name, *(f"{rows.get(name, 0) / GIB:.1f}" for rows in parts)] for name in names),
        ["**at most**", *(f"**{plan.peak / GIB:.1f}**" for plan in plans)],
        [f"fits in {GPU_GIB} GiB", *("yes" if plan.peak <= GPU_GIB * GIB else "no" for plan in plans)],
        [f"s for a step of {STEP_TOKENS:,} tokens", *(f"{value:.0f}" for value in seconds)],
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


if __name__ == "__main__":
    page = PAGE.read_text()
    before, rest = page.split(BEGIN)
    PAGE.write_text(before + BEGIN + render() + END + rest.split(END)[1])
