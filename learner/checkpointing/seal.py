"""Seal of a checkpoint: a digest of every file, signed by a key that lies beside the run.

torch unpickles a checkpoint's file, which runs code in it: so only files written by this run are loaded.
"""

import hmac
import os
import secrets
import stat
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import msgspec

from lightningbus.bus.jetstream.verified_download import sha256_of
from lightningbus.bus.security.secrets import write_secret

SEAL = "seal.json"
KEY_BYTES = 32
THREADS = min(4, os.cpu_count() or 1)
"""Files that are checked at once."""
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
OTHERS_REACH = stat.S_IRWXG | stat.S_IRWXO


class Seal(msgspec.Struct, frozen=True):
    """SHA-256 by relative path, and HMAC-SHA-256 of it; both in hex digits."""

    files: dict[str, str]
    mac: str


class InvalidSealError(ValueError):
    """A checkpoint differs from its sealed state; the message names the difference."""


def load_key(path: Path) -> bytes:
    """Read the key in a file, made there if missing; raise `InvalidSealError` if other users can access it."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):  # another process was quicker
            write_secret(path, secrets.token_hex(KEY_BYTES) + "\n")
    _check_owner(path, OTHERS_REACH)
    return path.read_bytes()


def write_seal(directory: Path, key: bytes) -> None:
    """Seal the present files of a directory, and remove other users' write permission."""
    for path in (directory, *directory.rglob("*")):
        path.chmod(path.stat().st_mode & ~OTHERS_WRITE)
    files = {name: sha256_of(path) for name, path in _find_files(directory).items()}
    (directory / SEAL).write_bytes(msgspec.json.encode(Seal(files, _mac(files, key))))
    (directory / SEAL).chmod(0o600)


def check_seal(directory: Path, key: bytes) -> None:
    """Raise `InvalidSealError` or OSError unless every file of a directory matches its seal by this key."""
    for path in (directory, *directory.rglob("*")):
        _check_owner(path, OTHERS_WRITE)
    try:
        seal = msgspec.json.decode((directory / SEAL).read_bytes(), type=Seal)
    except FileNotFoundError:
        raise InvalidSealError(f"it has no {SEAL}") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise InvalidSealError(f"its {SEAL} cannot be read") from None
    if not hmac.compare_digest(_mac(seal.files, key), seal.mac):
        raise InvalidSealError(f"its {SEAL} is not by the key of this run")
    files = _find_files(directory)
    if files.keys() != seal.files.keys():
        raise InvalidSealError(f"{min(files.keys() ^ seal.files.keys())} is missing, or was added")
    with ThreadPoolExecutor(THREADS, "seal") as pool:
        digests = dict(zip(files, pool.map(sha256_of, files.values()), strict=True))
    for name, digest in seal.files.items():
        if digests[name] != digest:
            raise InvalidSealError(f"{name} is not what was written")


def _find_files(directory: Path) -> dict[str, Path]:
    """Find all files of a directory but the seal, by relative path; links are followed."""
    paths = (path for path in directory.rglob("*") if not path.is_dir() and path != directory / SEAL)
    return {str(path.relative_to(directory)): path for path in paths}


def _mac(files: dict[str, str], key: bytes) -> str:
    return hmac.digest(key, msgspec.json.encode(sorted(files.items())), "sha256").hex()


def _check_owner(path: Path, forbidden: int) -> None:
    status = path.lstat()
    if status.st_uid not in (0, os.geteuid()) or stat.S_IMODE(status.st_mode) & forbidden or path.is_symlink():
        raise InvalidSealError(f"{path.name} belongs to another user, or others may change it")
