"""How large everything is that `make gpu` measures: real shapes of models, or tiny ones for a dry run."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from benchmarks.weights.swaps import Answers
from lightningbus.inference.engine.vllm_command import has_gpu

Size = Literal["small", "large"]


@dataclass(frozen=True, slots=True)
class Shape:
    """An architecture of transformers, and its sizes."""

    name: str
    family: Literal["qwen2", "llama"]
    fields: Mapping[str, Any]
    """Of its configuration."""


QWEN_05B = Shape(
    "Qwen2.5-0.5B", "qwen2",
    {
        "vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
        "num_attention_heads": 14, "num_key_value_heads": 2, "max_position_embeddings": 32768,
        "tie_word_embeddings": True, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    },
)  # fmt: skip
"""https://huggingface.co/Qwen/Qwen2.5-0.5B/blob/main/config.json"""
QWEN_15B = Shape(
    "Qwen2.5-1.5B", "qwen2",
    {
        **QWEN_05B.fields, "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28,
        "num_attention_heads": 12,
    },
)  # fmt: skip
"""https://huggingface.co/Qwen/Qwen2.5-1.5B/blob/main/config.json"""
LLAMA_3B = Shape(
    "Llama-3.2-3B", "llama",
    {
        "vocab_size": 128256, "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28,
        "num_attention_heads": 24, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 131072,
        "tie_word_embeddings": True,
        "rope_parameters": {
            "rope_type": "llama3", "rope_theta": 5e5, "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    },
)  # fmt: skip
"""https://huggingface.co/meta-llama/Llama-3.2-3B/blob/main/config.json"""
TINY = {
    "vocab_size": 512, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 1024, "tie_word_embeddings": True,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Scale:
    """One set of sizes."""

    shapes: Mapping[Size, Shape]
    dtype: Literal["bfloat16", "float32"]
    """Of the models' files, and so of what nodes serve."""
    concurrencies: tuple[int, ...]
    """Streams at once."""
    prompt_tokens: int
    answer_tokens: int
    num_rows: int
    """Sequences of a training step."""
    row_tokens: int
    """The longest of them."""
    max_tokens: int
    """Of a micro-batch."""
    swap: Answers
    deviation: float
    """Standard deviation of what an update adds to every weight."""
    demo_steps: int
    loop_steps: int
    pretrained_steps: int
    """Steps of the pretrained model."""
    cpu_threads: int | None
    """None: as many as torch and vLLM choose."""
    vllm_args: tuple[str, ...] = ()
    """Further arguments of every engine on a GPU."""
    is_pretrained: bool = True
    """Whether there is a pretrained model; else a model of the small size takes its place."""

    @property
    def max_model_len(self) -> int:
        """Tokens of the longest request, and some to spare."""
        return max(self.prompt_tokens + self.answer_tokens, self.swap.num_tokens) + 64

    def engine(self, share: float) -> dict[str, Any]:
        """Settings of a node whose engine takes that share of the GPU's memory."""
        streams = max(*self.concurrencies, self.swap.num_streams)
        fields: dict[str, Any] = {"max_model_len": self.max_model_len, "max_num_seqs": streams}
        if has_gpu():
            return fields | {"vllm_args": ["--gpu-memory-utilization", f"{share:g}", *self.vllm_args]}
        return fields | {"dtype": "float32", "cpu_threads": self.cpu_threads}


REAL = Scale(
    shapes={"small": QWEN_05B, "large": LLAMA_3B},
    dtype="bfloat16",
    concurrencies=(1, 8, 32, 128, 256),
    prompt_tokens=512,
    answer_tokens=256,
    num_rows=32,
    row_tokens=4096,
    max_tokens=8192,
    swap=Answers(num_streams=32, num_tokens=4000),
    deviation=1e-4,
    demo_steps=36,
    loop_steps=6,
    pretrained_steps=60,
    cpu_threads=None,
)
SHORT = replace(
    REAL,
    shapes={"small": QWEN_05B, "large": QWEN_15B},
    concurrencies=(1, 32, 128),
    swap=Answers(num_streams=32, num_tokens=2000),
    demo_steps=12,
    pretrained_steps=40,
    vllm_args=("--compilation-config", '{"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}'),
)
"""Sizes for minutes instead of an hour. Engines have CUDA graphs, and start sooner without torch.compile."""
SHORT_EAGER = replace(SHORT, vllm_args=("--enforce-eager", "--attention-backend", "TRITON_ATTN"))
"""Engines of Triton and torch alone, for a GPU on which those of `SHORT` do not start."""
DRY_RUN = Scale(
    shapes={
        "small": Shape("a tiny Qwen2", "qwen2", TINY),
        "large": Shape("a tiny Llama", "llama", {**TINY, "num_hidden_layers": 3}),
    },
    dtype="float32",
    concurrencies=(1, 4),
    prompt_tokens=16,
    answer_tokens=16,
    num_rows=6,
    row_tokens=64,
    max_tokens=128,
    swap=Answers(num_streams=4, num_tokens=900),
    deviation=4e-4,
    demo_steps=1,
    loop_steps=2,
    pretrained_steps=2,
    cpu_threads=1,
    is_pretrained=False,
)
SCALES = {"real": REAL, "short": SHORT, "short-eager": SHORT_EAGER, "dry-run": DRY_RUN}
