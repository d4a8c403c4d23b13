"""The estimated distance of two weight files is the exact one, or close to it."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from lightningbus.learner.publishing.weight_change import CHUNK_ELEMENTS, CHUNKS, estimate_change

SMALL, LARGE = (CHUNKS, CHUNK_ELEMENTS), (1024, 1024)


def write(path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    save_file(tensors, path)
    return path


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_small_tensors_are_read_whole(tmp_path: Path, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    old = {"a": torch.randn(SMALL), "b": torch.ones(3)}
    old = {name: tensor.to(dtype) for name, tensor in old.items()}
    new = {name: tensor + 0.01 * torch.randn(tensor.shape).to(dtype) for name, tensor in old.items()}
    flat = [torch.cat([tensor.double().flatten() for tensor in side.values()]) for side in (old, new)]
    exact = float((flat[1] - flat[0]).norm() / flat[0].norm())
    assert estimate_change(write(tmp_path / "0", old), write(tmp_path / "1", new)) == pytest.approx(exact)


def test_a_part_of_a_large_tensor_tells_its_change(tmp_path: Path) -> None:
    torch.manual_seed(0)
    old = {"large": torch.randn(LARGE), "small": 10 * torch.randn(100)}
    new = {name: tensor + 1e-3 * torch.randn(tensor.shape) for name, tensor in old.items()}
    exact = float(
        sum((new[name] - old[name]).square().sum() for name in old) / sum(old[name].square().sum() for name in old)
    )
    change = estimate_change(write(tmp_path / "0", old), write(tmp_path / "1", new))
    assert change == pytest.approx(exact**0.5, rel=0.02)


def test_the_same_weights_have_not_changed(tmp_path: Path) -> None:
    file = write(tmp_path / "0", {"a": torch.ones(3), "ids": torch.arange(3)})
    assert estimate_change(file, file) == 0.0


@pytest.mark.parametrize(
    "other",
    [{"b": torch.ones(3)}, {"a": torch.ones(4)}, {"a": torch.full((3,), torch.nan)}, {"a": torch.ones(3).half()}],
)
def test_other_tensors_have_no_known_distance(tmp_path: Path, other: dict[str, torch.Tensor]) -> None:
    assert estimate_change(write(tmp_path / "0", {"a": torch.ones(3)}), write(tmp_path / "1", other)) is None
