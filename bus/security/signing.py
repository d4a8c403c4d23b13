"""Signatures of what decides which weights are served: keys made, messages signed, and held to the public keys.

The key is not the one of the connection: that one signs what a server sends it.
"""

import base64
import binascii
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import nacl.exceptions
import nacl.signing
import nkeys

from lightningbus.bus.errors import CredentialsError
from lightningbus.bus.security.secrets import read_secret, write_secret
from lightningbus.schemas.base import Event
from lightningbus.schemas.signers import SIGNER_ROLES, bytes_to_sign, can_sign, role_of

log = logging.getLogger(__name__)
T = TypeVar("T")

SIGNATURE_HEADER = "Lightningbus-Signature"
"""The public key and the base64 signature, with a space between them."""
EXPECTED_LAST_HEADER = "Nats-Expected-Last-Subject-Sequence"
SEED, PUBLIC = "signing.seed", "signers.json"
_RAW_KEY = slice(1, 33)
"""Raw key bytes of a decoded nkey: one type byte comes before them, a checksum after."""


class InvalidSignatureError(ValueError):
    """A message is not signed by a key that may sign it; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class Signing:
    """This role's signing key, and the public keys it believes, by their files. Without ``signers`` signing is off.

    The files are read at each use. One that cannot be read, such as while it is being copied, counts as it was before.
    """

    seed: Path | None = None
    signers: Path | None = None
    _last_contents: dict[Path, Any] = field(default_factory=dict, init=False, compare=False, repr=False)
    _last_errors: dict[Path, str] = field(default_factory=dict, init=False, compare=False, repr=False)

    def check_files(self) -> None:
        """Read the files; raise `CredentialsError` for one that is missing or invalid and was never read before."""
        if self.signers is not None:
            self._read(public_keys, self.signers)
        if self.seed is not None:
            self._read(_key, self.seed)

    def _read(self, read: Callable[[Path], T], path: Path) -> T:
        try:
            content = read(path)
        except CredentialsError as error:
            if path not in self._last_contents:
                raise
            if self._last_errors.get(path) != str(error):
                log.warning("%s; what was read of it before still counts", error)
            self._last_errors[path] = str(error)
            last: T = self._last_contents[path]
            return last
        if self._last_errors.pop(path, None):
            log.warning("%s can be read again", path)
        self._last_contents[path] = content
        return content

    def headers(self, subject: str, event: Event, payload: bytes, after: int) -> dict[str, str]:
        """Build the headers that sign a message; raise `CredentialsError` where this role may not sign it."""
        if self.signers is None:
            return {}
        kind = type(event).__name__
        if self.seed is None:
            raise CredentialsError(f"this role has no signing key, so nobody would believe its {kind}")
        pair = self._read(_key, self.seed)
        public = pair.public_key.decode()
        if not can_sign(role_of(public, self._read(public_keys, self.signers)), event):
            raise CredentialsError(f"the key in {self.seed} may not sign this {kind}: nobody would believe it")
        signature = base64.b64encode(pair.sign(bytes_to_sign(subject, after, payload))).decode()
        return {SIGNATURE_HEADER: f"{public} {signature}", EXPECTED_LAST_HEADER: str(after)}

    def check(self, subject: str, event: Event, payload: bytes, headers: Mapping[str, str], previous: int) -> str:
        """Return the role that signed a message; empty where signing is off.

        ``previous``: sequence of the message before it on its subject, 0 if none is left.
        Raises `InvalidSignatureError`, or `CredentialsError` as `check_files`.
        """
        if self.signers is None:
            return ""
        public, _, signature = headers.get(SIGNATURE_HEADER, "").partition(" ")
        if not public:
            raise InvalidSignatureError("it is not signed")
        role = role_of(public, self._read(public_keys, self.signers))
        if not role:
            raise InvalidSignatureError(f"it is signed by a key nobody here knows: {public[:8]}…")
        after = headers.get(EXPECTED_LAST_HEADER, "")
        if not after.isdecimal() or not _is_signature(public, signature, bytes_to_sign(subject, int(after), payload)):
            raise InvalidSignatureError(f"its signature is not by the key of role {role} over these bytes on {subject}")
        if previous > int(after):
            raise InvalidSignatureError(f"it is an older message of role {role}, sent once more")
        if not can_sign(role, event):
            raise InvalidSignatureError(f"role {role} may not decide that")
        return role


@dataclass(frozen=True, slots=True)
class SigningKeys:
    """Public keys by role, and the signing keys of some of these roles."""

    public: Mapping[str, Sequence[str]]
    seeds: Mapping[str, bytes]

    @classmethod
    def create(cls, roles: Iterable[str] = SIGNER_ROLES) -> "SigningKeys":
        """Create fresh keys for all roles that sign."""
        return cls({}, {}).with_fresh(roles)

    @classmethod
    def read(cls, directory: Path) -> "SigningKeys":
        """Read the keys in a role's folder; raise `CredentialsError` if there are none."""
        public, seed = public_keys(directory / PUBLIC), directory / SEED
        if not seed.exists():
            return cls(public, {})
        role = role_of(_key(seed).public_key.decode(), public)
        return cls(public, {role: read_secret(seed, "signing key").strip().encode()})

    def with_fresh(self, roles: Iterable[str]) -> "SigningKeys":
        """Add fresh keys for these roles; signatures by their older keys stay valid."""
        seeds = {role: nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER) for role in roles}
        fresh = {role: nkeys.from_seed(seed).public_key.decode() for role, seed in seeds.items()}
        public = {role: [*self.public.get(role, ()), key] for role, key in fresh.items()}
        return SigningKeys({**self.public, **public}, {**self.seeds, **seeds})

    def write_public(self, directory: Path) -> None:
        """Write whom a role believes into its folder, at once: running roles read it."""
        unfinished = directory / f".{PUBLIC}"
        unfinished.write_text(json.dumps(self.public, indent=2) + "\n")
        unfinished.replace(directory / PUBLIC)

    def write(self, directory: Path, role: str) -> dict[str, str]:
        """Write what a role needs into its folder; returns the fields of its credentials file that name it."""
        self.write_public(directory)
        if role not in self.seeds:
            return {"signers": PUBLIC}
        write_secret(directory / SEED, self.seeds[role] + b"\n")
        return {"signers": PUBLIC, "signing": SEED}


def make_keys(out: Path, roles: Iterable[str], file: str) -> None:
    """Make folders of all roles with signing keys and nothing else, for a bus that is open to everybody on this host.

    All learners there are ``learner``: no server distinguishes them.
    """
    keys, unfinished = SigningKeys.create(), out.with_name(f".{out.name}")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True, mode=0o700)
    for role in roles:
        place = unfinished / role
        place.mkdir(mode=0o700)
        (place / file).write_text(json.dumps(keys.write(place, role), indent=2) + "\n")
    unfinished.rename(out)


def public_keys(path: Path) -> dict[str, list[str]]:
    """Read public keys by role; raise `CredentialsError` in one sentence."""
    try:
        return msgspec.json.decode(read_secret(path, "public keys"), type=dict[str, list[str]])
    except msgspec.DecodeError as error:
        raise CredentialsError(f"{path} is not a list of public keys by role: {error}") from None


def _key(path: Path) -> nkeys.KeyPair:
    try:
        return nkeys.from_seed(read_secret(path, "signing key").strip().encode())
    except (nkeys.NkeysError, ValueError):
        raise CredentialsError(f"{path} holds no signing key") from None


def _is_signature(public: str, signature: str, content: bytes) -> bool:
    try:
        raw = base64.b32decode(public + "=" * (-len(public) % 8))[_RAW_KEY]
        nacl.signing.VerifyKey(raw).verify(content, base64.b64decode(signature, validate=True))
    except (ValueError, binascii.Error, TypeError, nacl.exceptions.CryptoError):
        return False
    return True
