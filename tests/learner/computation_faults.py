"""Faults of an engine's computation, put into transformers' model of a family: what a check has to find."""

from collections.abc import Callable
from typing import Any

from lightningbus.learner.model_check.reference import ReferenceModel

Fault = Callable[[Any], None]


def double_rope_base(model: Any) -> None:
    """Double RoPE's theta."""
    import torch

    frequencies = model.model.rotary_emb.inv_freq
    frequencies.mul_(2.0 ** -(torch.arange(len(frequencies)) / len(frequencies)))


def scale_attention(model: Any) -> None:
    """Multiply the products of queries and keys by 1.05."""
    for layer in model.model.layers:
        layer.self_attn.scaling *= 1.05


def scale_logits(model: Any, scale: float = 1.02) -> None:
    """Multiply the logits."""
    import torch

    head = model.lm_head
    model.lm_head = torch.nn.Linear(head.in_features, head.out_features, bias=False)
    model.lm_head.weight = torch.nn.Parameter(head.weight * scale)


def exchange_heads(model: Any) -> None:
    """Exchange two heads in one layer's output."""
    layer = model.model.layers[len(model.model.layers) // 2].self_attn
    weight, width = layer.o_proj.weight, layer.head_dim
    first, second = weight[:, :width].clone(), weight[:, width : 2 * width].clone()
    weight[:, :width], weight[:, width : 2 * width] = second, first


def round_to_int8(model: Any) -> None:
    """Round each row of each layer's matrices to 255 values."""
    for parameter in model.model.layers.parameters():
        if parameter.dim() == 2:
            step = parameter.abs().amax(1, keepdim=True) / 127
            parameter.copy_((parameter / step).round() * step)


FAULTS: dict[str, Fault] = {
    "RoPE's theta is doubled": double_rope_base,
    "attention scale x 1.05": scale_attention,
    "logits x 1.02": scale_logits,
    "two heads exchanged in one layer": exchange_heads,
    "weights in int8": round_to_int8,
}


def make_faulty(reference: ReferenceModel, fault: Fault) -> None:
    """Put a fault into a reference model."""
    import torch

    with torch.no_grad():
        fault(reference._model)
