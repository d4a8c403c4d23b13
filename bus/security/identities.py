"""Identity of a user to the server: an nkey, or with TLS a certificate and the password that belongs to it."""

import os
import secrets
from pathlib import Path

import nkeys
from cryptography import x509

from lightningbus.bus.errors import CredentialsError
from lightningbus.bus.security.certificates import CERT, CLIENT, KEY, CertificateAuthority
from lightningbus.bus.security.secrets import new_key, read_secret, write_secret

NKEY, PASSWORD = "nkey", "password"
MAX_ROLE_IN_NAME = 32
"""Characters of a role that a certificate's name has: X.509 allows a name 64, and chance makes this one unique."""
Identity = dict[str, str]
"""The fields of a user in the server's configuration that identify it."""


def new_nkey(directory: Path) -> dict[str, str]:
    """Write a fresh nkey; returns the fields of the credentials file that name it."""
    seed = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)
    write_secret(directory / NKEY, seed + b"\n")
    return {"nkey": NKEY}


def new_certificate(directory: Path, role: str, authority: CertificateAuthority) -> dict[str, str]:
    """Write a client certificate with a unique name, and its password; return the same form as `new_nkey`.

    nats-server accepts an nkey with any certificate, so with TLS there is none: the certificate identifies the user
    (``verify_and_map``), and the password protects a server that maps no certificates from a bare name.
    """
    authority.issue(directory, f"lightningbus {role[:MAX_ROLE_IN_NAME]} {secrets.token_hex(8)}", CLIENT)
    write_secret(directory / PASSWORD, new_key() + "\n")
    return {"cert": CERT, "key": KEY, "password": PASSWORD}


def identity_of(directory: Path) -> Identity:
    """Read the identity from a role's directory; raise `CredentialsError` if its files hold none."""
    if (directory / NKEY).exists():
        seed = read_secret(directory / NKEY, "nkey").strip().encode()
        try:
            return {"nkey": nkeys.from_seed(seed).public_key.decode()}
        except (nkeys.NkeysError, ValueError):
            raise CredentialsError(f"{directory / NKEY} holds no nkey seed") from None
    text = read_secret(directory / CERT, "certificate")
    try:
        subject = x509.load_pem_x509_certificate(text.encode()).subject
    except ValueError:
        raise CredentialsError(f"{directory / CERT} holds no certificate") from None
    return {"user": subject.rfc4514_string(), "password": read_secret(directory / PASSWORD, "password").strip()}
