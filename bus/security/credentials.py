"""A client's identity on the bus and the servers it trusts: keys and certificates of one role, from a directory."""

import json
import ssl
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import nkeys

from lightningbus.bus.errors import CredentialsError
from lightningbus.bus.jetstream.nats_client import PlaintextServerError
from lightningbus.bus.security.permissions import PERMISSIONS, inbox_prefix
from lightningbus.bus.security.secrets import read_secret
from lightningbus.bus.security.signing import Signing
from lightningbus.schemas.signers import ADMIN, LEARNER, learner_role

FILE = "credentials.json"
POLICIES = "policies.json"
"""File that lists the models learners may train; it lies beside the folders of all roles."""
HELP = "a directory that `lightningbus bus create-users` wrote"
FATAL_TLS_REASONS = ("ALERT", "WRONG_VERSION_NUMBER", "UNSUPPORTED_PROTOCOL")


@dataclass(frozen=True, slots=True)
class Credentials:
    """Everything that `nats` needs beside an address. Only paths: the files are read when needed, and never kept.

    ``nkey`` is a file with a seed, ``credentials`` one with a JWT and its seed, as operators of accounts hand them out,
    ``password`` one with the password that belongs to the certificate in ``cert``.
    """

    inbox: str = "_INBOX"
    nkey: Path | None = None
    credentials: Path | None = None
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    password: Path | None = None
    signing: Path | None = None
    """A file with the seed that this role signs by."""
    signers: Path | None = None
    """File with the trusted public keys, by role; None: every message is trusted."""

    def build_signing(self) -> Signing:
        """Collect the keys by which this role signs and verifies."""
        return Signing(self.signing, self.signers)

    @property
    def has_user(self) -> bool:
        """Whether the files identify a user."""
        return any(file is not None for file in (self.nkey, self.credentials, self.password))

    @classmethod
    def read(cls, directory: Path, role: str) -> "Credentials":
        """Read a role's credentials from its own directory, or from one of all roles; raises `CredentialsError`.

        A client may come as the admin, and a learner by the credentials of any learner.
        """
        directory_of_role = next((folder for folder in (directory, directory / role) if (folder / FILE).exists()), None)
        if directory_of_role is None:
            raise CredentialsError(f"{directory} has no credentials for role {role}: it is not {HELP}")
        try:
            content = json.loads(read_secret(directory_of_role / FILE, "credentials"))
            if not isinstance(content.get("inbox", ""), str):
                raise TypeError("inbox is text")
            credentials = cls(
                **{name: value if name == "inbox" else directory_of_role / value for name, value in content.items()}
            )
        except (ValueError, TypeError, AttributeError) as error:
            known = ", ".join(field.name for field in fields(cls))
            raise CredentialsError(
                f"{directory_of_role / FILE} is not a credentials file: a JSON object of {known}"
            ) from error
        owner = credentials.find_owner()
        if (
            owner
            and credentials.inbox != inbox_prefix(role)
            and (owner, role) != (ADMIN, "client")
            and not owner.startswith(f"{role}-")
        ):
            raise CredentialsError(f"{directory_of_role} has no credentials for role {role}: they are those of {owner}")
        credentials.build_options()
        return credentials

    def find_owner(self) -> str:
        """Return the role that these credentials were written for; empty where somebody else wrote them."""
        _, _, owner = self.inbox.partition(inbox_prefix(""))
        return owner if owner in PERMISSIONS or owner.startswith(learner_role("")) else ""

    @classmethod
    def read_learner(cls, directory: Path, model: str) -> "Credentials":
        """Read those of a model's learner, as `read`; where one model is trained they are the role ``learner``'s."""
        if (directory / learner_role(model) / FILE).exists():
            return cls.read(directory, learner_role(model))
        if (directory / POLICIES).exists() and model not in (known := read_policies(directory)):
            raise CredentialsError(
                f"by the users in {directory} learners train {', '.join(known)} and not {model}: make new users, with "
                "--policy for each model of the run, by `lightningbus bus create-users`"
            )
        return cls.read(directory, LEARNER)

    def build_options(self) -> dict[str, Any]:
        """Build the arguments for nats-py's ``connect``; every file is checked, so that an error names the bad one."""
        options: dict[str, Any] = {"inbox_prefix": self.inbox}
        self.build_signing().check_files()
        if self.nkey is not None:
            try:
                nkeys.from_seed(read_secret(self.nkey, "nkey").strip().encode()).wipe()
            except (nkeys.NkeysError, ValueError):
                raise CredentialsError(f"{self.nkey} holds no nkey seed") from None
            options["nkeys_seed"] = str(self.nkey)
        if self.credentials is not None:
            read_secret(self.credentials, "credentials")
            options["user_credentials"] = str(self.credentials)
        if self.password is not None:
            # The certificate names the user. nats-py asks for the password at each connection.
            read_secret(self.password, "password")
            options |= {"user": "", "password": partial(_first_line, self.password)}
        if self.ca is not None or self.cert is not None:
            # TLS handshake first: else a server, or somebody in between, could announce that it wants no TLS.
            options |= {"tls": self._tls(), "tls_handshake_first": True}
        return options

    def _tls(self) -> ssl.SSLContext:
        for path in filter(None, (self.ca, self.cert, self.key)):
            read_secret(path, "certificate or its key")
        try:
            context = ssl.create_default_context(cafile=self.ca)
        except ssl.SSLError as error:
            raise CredentialsError(f"{self.ca} holds no certificate") from error
        if self.cert is not None:
            try:
                context.load_cert_chain(self.cert, self.key)
            except ssl.SSLError as error:
                raise CredentialsError(f"{self.cert} and {self.key} are not a certificate and its key") from error
        return context


def read_policies(out: Path) -> tuple[str, ...]:
    """Read the models that learners may train by these users; raise `CredentialsError`."""
    try:
        return tuple(msgspec.json.decode((out / POLICIES).read_bytes(), type=list[str]))
    except (OSError, msgspec.DecodeError) as error:
        raise CredentialsError(f"{out / POLICIES} does not list the models that learners train: {error}") from error


def _first_line(path: Path) -> str:
    return read_secret(path, "password").strip()


def explain_connect_error(error: Exception, credentials: Credentials | None, is_user_in_address: bool = False) -> str:
    """Explain an error that a retry will not fix; empty if one might. ``credentials``: those that we sent."""
    if isinstance(error, CredentialsError):  # a file that is read again before each connection
        return str(error)
    if isinstance(error, PlaintextServerError):
        return "it speaks no TLS, and its address says tls://"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not to be trusted ({error.verify_message})"
    if isinstance(error, ssl.SSLError) and any(mark in (error.reason or "") for mark in FATAL_TLS_REASONS):
        return f"TLS with it fails ({error.reason}): are server and client of the same `lightningbus bus create-users`?"
    if "authorization violation" in str(error).lower():
        return f"it rejects unknown users, and {_explain_unknown_user(credentials, is_user_in_address)}"
    return ""


def _explain_unknown_user(credentials: Credentials | None, is_user_in_address: bool) -> str:
    """Name what the server compares: a user and password, a certificate and its user's password, or a key."""
    if is_user_in_address and (credentials is None or not credentials.has_user):
        return "it has no user of the name and password, or no such token, in its address"
    if credentials is None or not credentials.has_user:
        return f"it asks for a user: give --credentials, {HELP}"
    if credentials.password is not None:
        return f"it has no user of this certificate with the password in {credentials.password}"
    return "it has no user of this key"
