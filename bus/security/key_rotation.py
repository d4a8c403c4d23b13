"""New keys and a new authority for the users of a running bus, in two steps, between which old and new are let in."""

import shutil
from collections.abc import Iterator
from pathlib import Path

from cryptography import x509

from lightningbus.bus.errors import CredentialsError
from lightningbus.bus.security.certificates import CA, CERT, CLIENT, KEY, ROUTE_PREFIX, SERVER, CertificateAuthority
from lightningbus.bus.security.credentials import FILE, read_policies
from lightningbus.bus.security.identities import NKEY, PASSWORD, identity_of, new_certificate, new_nkey
from lightningbus.bus.security.permissions import LEAF_ROLES
from lightningbus.bus.security.secrets import CONF, SERVER_DIR
from lightningbus.bus.security.users import add_users, roles_of, server_conf, write_leaf_conf

PREVIOUS, NEXT = "previous", "next"
"""Below the users: what the roles were let in by before, and what the server shows after the second step."""


def begin_rotation(out: Path, site: bool = False) -> Iterator[str]:
    """Give each role new keys; the server takes old and new. Raise `CredentialsError` if a rotation is under way.

    With certificates, clients trust the old authority and the new one from now on, and the server shows the old
    certificate until `finish_rotation`. A role that an older release did not know is given its first keys.
    """
    if not (out / CONF).exists():
        raise CredentialsError(
            f"{out} holds no {CONF}: it is not a directory that `lightningbus bus create-users` wrote"
        )
    if (out / PREVIOUS).exists():
        raise CredentialsError(
            f"a rotation of {out} is under way: reload each server (`kill -HUP`), give each role its new keys, "
            "and then end the rotation with --finish"
        )
    roles, server = roles_of(out, site), out / SERVER_DIR
    authority = CertificateAuthority.create() if server.exists() else None
    previous = out / PREVIOUS
    previous.mkdir(mode=0o700)
    added = [role for role in roles if not (out / role / FILE).exists()]
    for role in (role for role in roles if role not in added):
        directory, kept = out / role, previous / role
        kept.mkdir(mode=0o700)
        # A reader meets the old files or the new ones; where it meets both it is refused once, and reads again.
        for name in (NKEY, PASSWORD, CERT, KEY):
            if (directory / name).exists():
                shutil.move(directory / name, kept / name)
        if (kept / NKEY).exists():
            new_nkey(directory)
            if role in LEAF_ROLES:
                write_leaf_conf(directory)
            if authority is not None:
                authority.issue(directory, f"lightningbus {role}", CLIENT)
        elif authority is not None:
            new_certificate(directory, role, authority)
        if authority is not None:
            _add_certificate(authority, directory)
        yield f"{directory}: new keys"
    if added:
        add_users(out, added, authority)
    for role in added:
        if authority is not None:  # the server shows its old certificate until the second step
            _replace(out / role / CA, authority.pem() + (server / CA).read_bytes())
        yield f"{out / role}: what {role} is let in by"
    if authority is not None:
        names = _hosts(server / CERT)
        following = server / NEXT
        following.mkdir(mode=0o700)
        authority.issue(following, "lightningbus bus", SERVER, hosts=names)
        _add_certificate(authority, server)
        routes = CertificateAuthority.create()
        routes.issue(following, "lightningbus bus", SERVER, CLIENT, hosts=names, prefix=ROUTE_PREFIX)
        _add_certificate(routes, server, ROUTE_PREFIX)
    _write_conf(out, site)
    yield f"{out / CONF}: old and new keys are let in"


def finish_rotation(out: Path, site: bool = False) -> Iterator[str]:
    """Let the old keys in no longer; raises `CredentialsError` unless a rotation was begun."""
    if not (out / PREVIOUS).exists():
        raise CredentialsError(f"no rotation of {out} is under way")
    server = out / SERVER_DIR
    if server.exists():
        for file in (server / NEXT).iterdir():
            file.replace(server / file.name)
        (server / NEXT).rmdir()
        _remove_old(server, ROUTE_PREFIX)
        for directory in (server, *(out / role for role in roles_of(out, site))):
            _remove_old(directory)
    shutil.rmtree(out / PREVIOUS)
    _write_conf(out, site)
    yield f"{out / CONF}: the old keys are let in no longer"


def _write_conf(out: Path, site: bool) -> None:
    identities = {
        role: [identity_of(directory) for directory in (out / role, out / PREVIOUS / role) if directory.exists()]
        for role in roles_of(out, site)
    }
    server_conf(out, identities, () if site else read_policies(out), site)


def _add_certificate(authority: CertificateAuthority, directory: Path, prefix: str = "") -> None:
    """Trust an authority in addition to those trusted already; the new one comes first."""
    bundle = directory / f"{prefix}{CA}"
    _replace(bundle, authority.pem() + bundle.read_bytes())


def _remove_old(directory: Path, prefix: str = "") -> None:
    bundle = directory / f"{prefix}{CA}"
    mark = b"-----END CERTIFICATE-----\n"
    _replace(bundle, bundle.read_bytes().partition(mark)[0] + mark)


def _replace(path: Path, content: bytes) -> None:
    new = path.with_name(f".{path.name}.new")
    new.write_bytes(content)
    new.replace(path)


def _hosts(certificate: Path) -> list[str]:
    """List the names and addresses a certificate is for."""
    names = x509.load_pem_x509_certificate(certificate.read_bytes()).extensions
    return [str(name.value) for name in names.get_extension_for_class(x509.SubjectAlternativeName).value]
