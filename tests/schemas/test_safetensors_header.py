"""The files that a model's weights are read from."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from lightningbus.schemas.weights.safetensors_header import InvalidSafetensorsError, find_weight_files, read_tensors

pytestmark = pytest.mark.unit


def test_a_model_is_read_from_the_files_of_its_index(tmp_path: Path) -> None:
    """Mistral's consolidated file holds the weights of the shards again, under names of its own."""
    for number in (1, 2):
        save_file({f"layer.{number}": np.zeros(8, np.float32)}, tmp_path / f"shard-{number}.safetensors")
    save_file({"whole": np.zeros(16, np.float32)}, tmp_path / "consolidated.safetensors")
    assert len(find_weight_files(tmp_path)) == 3, "nothing says which"
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {f"layer.{n}": f"shard-{n}.safetensors" for n in (2, 1)}}))
    assert [path.name for path in find_weight_files(tmp_path)] == ["shard-1.safetensors", "shard-2.safetensors"]
    assert read_tensors(tmp_path).keys() == {"layer.1", "layer.2"}
    index.write_text("{")
    with pytest.raises(InvalidSafetensorsError, match=r"index\.json cannot be read"):
        find_weight_files(tmp_path)
    save_file({"layer.1": np.zeros(1, np.float32)}, tmp_path / "model.safetensors")
    assert [path.name for path in find_weight_files(tmp_path)] == ["model.safetensors"], "as transformers prefers"
