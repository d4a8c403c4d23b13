"""`make gpu-kit`: its parts, the edits of the store, and the calls on a machine without a network."""

import configparser
import os
import re
import struct
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from sysconfig import get_paths
from typing import Any

import pytest

from benchmarks.gpu.plan import choose_steps
from benchmarks.gpu.record import Outcome, read
from deploy.airgapped import __main__ as kit
from deploy.airgapped import calls, fat_binaries, store_edits, wheels
from deploy.airgapped.fat_binaries import MACHINE_CODE, PTX, FatBinaryError
from tests.commands import ROOT, environment

KIT = ROOT / "deploy" / "airgapped"
WHEEL = bytes(range(251)) * 5
"""Content of a wheel that comes in 13 pieces."""


def elf(sections: Mapping[str, bytes]) -> bytes:
    """A 64-bit little-endian ELF file of these sections."""
    names = b"\0".join([b"", *(name.encode() for name in sections), b".shstrtab", b""])
    bodies = [*sections.values(), names]
    table = b""
    for name, start, body in zip([*sections, ".shstrtab"], starts(64, bodies), bodies, strict=True):
        table += struct.pack("<IIQQQQIIQQ", names.index(name.encode()), 1, 0, 0, start, len(body), 0, 0, 1, 0)
    header = bytearray(64)
    header[:4] = b"\x7fELF"
    struct.pack_into("<Q", header, 0x28, 64 + sum(map(len, bodies)))
    struct.pack_into("<HHH", header, 0x3A, 64, len(bodies), len(sections))
    return bytes(header) + b"".join(bodies) + table


def starts(first: int, bodies: Sequence[bytes]) -> list[int]:
    """Compute the offset of each of several bodies."""
    return [first + sum(map(len, bodies[:place])) for place in range(len(bodies))]


def element(kind: int, architecture: int, code: bytes) -> bytes:
    """An element of a fat binary."""
    header = bytearray(64)
    struct.pack_into("<HHIQ", header, 0, kind, 0x101, len(header), len(code))
    struct.pack_into("<I", header, fat_binaries.ARCHITECTURE_OFFSET, architecture)
    return bytes(header) + code


def library(*binaries: Sequence[bytes], padding: bytes = bytes(8)) -> bytes:
    """A library whose fat binaries have these elements."""
    section = b""
    for elements in binaries:
        body = b"".join(elements)
        section += struct.pack("<IHHQ", fat_binaries.MAGIC, 1, 16, len(body)) + body + padding
    return elf({".text": b"host code", fat_binaries.SECTION.decode(): section, ".data": b"behind it"})


def labels(stripped: bytes) -> list[list[str]]:
    """The elements of each fat binary."""
    return [[each.label for each in binary.elements] for binary in fat_binaries.parse(stripped)]


OLD, HOPPER, NEW = (element(MACHINE_CODE, number, bytes([number]) * 64) for number in (80, 90, 100))
SOURCE = element(PTX, 90, b"p" * 64)


def test_a_stripped_library_has_one_architecture_and_its_size() -> None:
    whole = library([OLD, HOPPER, SOURCE], [HOPPER, NEW])
    stripped, report = fat_binaries.strip(whole, 90)
    assert labels(whole) == [["sm_80", "sm_90", "ptx_90"], ["sm_90", "sm_100"]]
    assert labels(stripped) == [["sm_90"], ["sm_90"]]
    assert len(stripped) == len(whole) and OLD not in stripped and b"behind it" in stripped
    assert [(each.name, each.start) for each in fat_binaries.list_sections(stripped)] == [
        (each.name, each.start) for each in fat_binaries.list_sections(whole)
    ]
    assert (
        str(report) == "kept 2 elements of 256 bytes, dropped 3 of 384 (ptx_90, sm_100, sm_80), filled 0 fat binaries"
    )
    assert fat_binaries.strip(stripped, 90)[0] == stripped


def test_a_fat_binary_without_the_architecture_is_filled_with_a_newer_one() -> None:
    binaries = library([OLD, SOURCE], [HOPPER])
    with pytest.raises(FatBinaryError, match="name a library with --filler-from"):
        fat_binaries.strip(binaries, 90)
    stripped, report = fat_binaries.strip(binaries, 90, filler_from=library([NEW], [HOPPER]))
    assert labels(stripped) == [["sm_100"], ["sm_90"]] and report.num_fillers == 1
    with pytest.raises(FatBinaryError, match="larger than what it replaces"):
        fat_binaries.strip(library([element(MACHINE_CODE, 80, b"")]), 90, filler_from=library([NEW]))
    with pytest.raises(FatBinaryError, match=r"no section \.nv_fatbin"):
        fat_binaries.strip(elf({".text": b""}), 90)


def test_code_is_dropped_if_each_of_its_kernels_is_named() -> None:
    kernels = [element(MACHINE_CODE, 90, elf({f".text.{name}": b"" for name in names})) for names in ("a", "ab", "b")]
    stripped, _ = fat_binaries.strip(library([*kernels, HOPPER]), 90, [re.compile("a")])
    (binary,) = fat_binaries.parse(stripped)
    assert [fat_binaries.list_kernels(each.code) for each in binary.elements] == [["a", "b"], ["b"], []]


def test_the_edits_of_the_store_fit_this_tree(tmp_path: Path) -> None:
    """Each edit has its place in the file as it is now, and what comes out is Python."""
    for name in store_edits.EDITS:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    store_edits.edit_tree(tmp_path)
    for name, edits in store_edits.EDITS.items():
        before, after = (ROOT / name).read_text(), (tmp_path / name).read_text()
        assert before != after and all(new in after for _, new in edits)
        assert store_edits.edit(name, after) == after
        if name.endswith(".py"):
            compile(after, name, "exec")
    (tmp_path / name).write_text("something else\n")
    with pytest.raises(store_edits.EditError, match=r"0 times, not once: change its row of EDITS"):
        store_edits.edit_tree(tmp_path)


def test_the_edited_store_asks_for_no_function_that_the_lite_engine_lacks() -> None:
    """Reports that do are left out; a new use elsewhere needs an edit."""
    for path in (ROOT / "store").rglob("*"):
        name = path.relative_to(ROOT).as_posix()
        if path.suffix not in (".py", ".sql") or path.parent.name == "reports":
            continue
        text = store_edits.edit(name, path.read_text()) if name in store_edits.EDITS else path.read_text()
        used = re.findall(r"\b(bitShiftLeft|formatQuerySingleLine|groupArraySorted|kolmogorovSmirnovTest\w*)\(", text)
        assert not used, name


def test_each_package_is_pinned_and_in_one_part() -> None:
    packages, versions = wheels.read_packages(kit.PACKAGES.read_text()), wheels.read_versions(kit.LOCK.read_text())
    assert set(packages) == set(kit.PARTS) == set(kit.UNUSED)
    names = [name for part in packages.values() for name in part]
    assert (
        len(names) == len(set(names))
        and {name.partition("==")[0] for name in names} >= wheels.SOURCES_ALONE | wheels.BUILT_THERE
    )
    for name in [*names, "vllm"]:
        assert re.fullmatch(r"[\w.-]+==[\w.+]+", wheels.pin(name, versions)), name
    with pytest.raises(wheels.PackageError, match="nothing is not in"):
        wheels.pin("nothing", versions)
    ways = {name: wheels.choose_way(name) for name in ("pycosat==0.6.6", "zss==1.2.0", "gguf")}
    assert ways == {"pycosat==0.6.6": "built there", "zss==1.2.0": "sources alone", "gguf": "wheels"}
    assert wheels.read_versions("uvicorn[standard]==1.2 \\\n    --hash=x\n") == {"uvicorn": "1.2"}


def test_a_wheel_lies_as_pip_lays_it(tmp_path: Path) -> None:
    wheel = tmp_path / "p-1-py3-none-any.whl"
    members = {"p/__init__.py": "", "p-1.data/purelib/q.py": "1", "p-1.data/scripts/run": "2", "p-1.data/data/x": "3"}
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    kit.unpack(wheel, tmp_path / "site")
    files = {path.relative_to(tmp_path / "site").as_posix(): path for path in (tmp_path / "site").rglob("*.*")}
    script = tmp_path / "site" / "bin" / "run"
    assert set(files) == {"p/__init__.py", "q.py"} and script.read_text() == "2" and os.access(script, os.X_OK)


def test_the_metadata_has_the_entry_points_of_the_project(tmp_path: Path) -> None:
    kit.write_metadata(tmp_path)
    (folder,) = tmp_path.iterdir()
    points = configparser.ConfigParser(delimiters="=")
    points.read(folder / "entry_points.txt")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {**points["console_scripts"]} == project["scripts"]
    assert {**points["vllm.general_plugins"]} == project["entry-points"]["vllm.general_plugins"]


@pytest.mark.integration
def test_a_part_is_the_same_file_each_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = tmp_path / "site"
    for name in ("used.py", "unused/a.py", "__pycache__/used.pyc"):
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(name)
    kit.remove(["unused", "gone"], site)
    assert "the packages have no gone any more" in capsys.readouterr().out
    first = kit.pack(site, tmp_path / "out" / "learner.tar.xz")
    content = first.read_bytes()
    (site / "used.py").touch()
    assert kit.pack(site, first).read_bytes() == content
    with tarfile.open(first) as archive:
        assert archive.getnames() == [".", "./used.py"]


def test_the_calls_have_the_steps_of_make_gpu_in_its_order() -> None:
    for name, steps in calls.CALLS.items():
        assert tuple(step.name for step in choose_steps(steps, ())) == steps, name
    assert calls.CALLS["engine"][0] == calls.FIRST_ENGINE


def test_engines_that_do_not_start_leave_later_calls_other_sizes(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"steps": [vars_of(Outcome("a", "A", 1.0, "no")), vars_of(Outcome("b", "B", 1.0))]}
    fields["steps"][1]["results"] = [{"case": "x"}]
    assert [calls.has_no_figures(fields, name) for name in ("a", "b", "c")] == [True, False, False]
    assert calls.read_scale(tmp_path, "short") == "short"
    (tmp_path / calls.SCALE_FILE).write_text("short-eager")
    assert calls.read_scale(tmp_path, "short") == "short-eager"
    assert calls.read_scale(tmp_path, "dry-run") == "dry-run"


def vars_of(outcome: Outcome) -> dict[str, Any]:
    return {name: getattr(outcome, name) for name in outcome.__dataclass_fields__}


def call_on_device(place: Path, call: str, only: str = "") -> dict[str, Any]:
    """The results of a call with tiny models, in a copy of the tree, by an interpreter with packages of its own."""
    tree = place / "tree"
    tree.mkdir()
    for path in ROOT.iterdir():
        if not path.name.startswith(".") and path.name != "runs":
            (tree / path.name).symlink_to(path)
    venv.create(place / "venv", symlinks=True)
    packages = Path(get_paths(vars={"base": str(place / "venv")})["purelib"])
    (packages / "machine.pth").write_text(get_paths()["purelib"] + "\n")
    site = place / "site"
    site.mkdir()
    (site / "of_the_kit.py").write_text("")
    kit.pack(site, tree / ".gpukit" / "learner.tar.xz")
    (place / "model-1.whl").write_bytes(WHEEL)
    kit.write_pieces(place / "model-1.whl", tree / ".gpukit", 100)
    python = place / "venv" / "bin" / "python"
    variables = {
        "KIT": str(place / "kit"), "OUT": str(place / "out"), "PYTHON": str(python), "DRY_RUN": "1", "ONLY": only,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }  # fmt: skip
    done = subprocess.run(
        ["bash", str(KIT / "on_device.sh"), call, "60"], cwd=tree, env=environment() | variables, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    subprocess.run([python, "-c", "import of_the_kit, lightningbus"], check=True, cwd=place)
    assert (place / "kit" / "wheels" / "model-1.whl").read_bytes() == WHEEL
    assert not list((place / "kit" / "pieces").iterdir())
    results = read(place / "out" / "gpu.json")
    table = (place / "out" / "table.md").read_text()
    assert all(row["case"] in table for step in results["steps"] for row in step["results"])
    with tarfile.open(place / "out" / "logs.tar.gz") as archive:
        assert {f"steps/{step['name']}.log" for step in results["steps"]} <= set(archive.getnames())
    return results


@pytest.mark.long
@pytest.mark.e2e
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("call", calls.CALLS)
def test_a_dry_run_of_a_call_has_all_of_its_figures(tmp_path: Path, call: str) -> None:
    results = call_on_device(tmp_path, call)
    assert [step["name"] for step in results["steps"]] == list(calls.CALLS[call])
    assert all(step["results"] and not step["error"] for step in results["steps"])
    assert not list(Path(get_paths()["purelib"]).glob("gpukit.pth"))
