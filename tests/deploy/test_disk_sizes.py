"""The disks that the page of sizes asks for: by its formulas, the streams' bounds and the learner's defaults."""

import re

import pytest
import yaml

from lightningbus.bus.embedded.nats_server import STORE_GIB
from lightningbus.bus.streams.sizes import MIB
from lightningbus.bus.streams.specs import BUCKET, STREAMS
from lightningbus.learner.settings.learner import LearnerSettings
from tests.deploy.commands import DEPLOY, ROOT

SIZING = (ROOT / "docs" / "sizing.md").read_text()
BILLIONS = (0.49, 7.6, 32.8)
DEFAULTS = {
    name: LearnerSettings.model_fields[name].default for name in ("keep_weight_versions", "keep_last_checkpoints")
}
FILES = DEFAULTS["keep_weight_versions"] + 3
CHECKPOINT_BYTES, FILE_BYTES = 14, 2
STREAMS_BYTES = sum(stream.max_bytes or 0 for stream in STREAMS if stream.name != BUCKET)


@pytest.mark.parametrize(
    ("row", "bytes_each"),
    [
        ("a version", FILE_BYTES),
        ("versions on the bus", FILES * FILE_BYTES),
        ("`checkpoint_dir`", (DEFAULTS["keep_last_checkpoints"] + 1) * CHECKPOINT_BYTES + 2 * FILE_BYTES),
        ("`work_dir` of a node", 3 * FILE_BYTES),
    ],
)
def test_a_row_is_its_formula(row: str, bytes_each: int) -> None:
    (cells,) = (line.split(" | ")[2:] for line in SIZING.splitlines() if line.startswith(f"| {row}"))
    stated = [int(cell.strip(" |").replace(",", "")) for cell in cells]
    assert stated == [round(bytes_each * billions) for billions in BILLIONS]


def test_the_bus_has_the_room_that_the_page_says() -> None:
    assert f"**The bus has room for {STORE_GIB} GiB**" in SIZING
    (stated,) = re.findall(r"of which its other streams may take ([\d.]+) GiB", SIZING)
    assert stated == f"{STREAMS_BYTES / MIB / 1024:.1f}"
    (billions,) = re.findall(r"versions of up to ([\d.]+) billion parameters fit", SIZING)
    assert STREAMS_BYTES + FILES * FILE_BYTES * float(billions) * 1e9 < STORE_GIB * 1024 * MIB


def test_a_server_in_kubernetes_has_a_disk_for_all_that_it_may_hold() -> None:
    documents = yaml.safe_load_all((DEPLOY / "kubernetes" / "nats.yaml").read_text())
    (claim,) = next(each for each in documents if each["kind"] == "StatefulSet")["spec"]["volumeClaimTemplates"]
    assert int(claim["spec"]["resources"]["requests"]["storage"].removesuffix("Gi")) > STORE_GIB
