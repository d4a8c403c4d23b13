"""Creation of users: a key for each role, certificates if wanted, and the server's configuration."""

import json
import shutil
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from lightningbus.bus.errors import CredentialsError
from lightningbus.bus.security.accounts import build_accounts, build_leaf_accounts
from lightningbus.bus.security.certificates import CA, CERT, CLIENT, KEY, ROUTE_PREFIX, SERVER, CertificateAuthority
from lightningbus.bus.security.credentials import FILE, POLICIES, read_policies
from lightningbus.bus.security.identities import NKEY, Identity, identity_of, new_certificate, new_nkey
from lightningbus.bus.security.permissions import LEAF_ROLES, PERMISSIONS, inbox_prefix, make_permissions
from lightningbus.bus.security.secrets import CONF, INFERENCE_API_KEY, SERVER_DIR, new_key, read_secret, write_secret
from lightningbus.bus.security.signing import SigningKeys
from lightningbus.bus.streams.specs import DEFAULT_POLICIES
from lightningbus.schemas.signers import ADMIN, LEARNER, SIGNER_ROLES, learner_roles

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
LEAF_CONF = "nkey.conf"
INFERENCE_KEY_ROLES = ("runner", "inference")
"""Roles that hold the inference API key of the nodes' gateways."""


def create_users(
    out: Path,
    tls: bool,
    hosts: Sequence[str] = (),
    site: bool = False,
    signing: Path | None = None,
    policies: Sequence[str] = DEFAULT_POLICIES,
) -> Iterator[str]:
    """Write all users below ``out`` and report progress; raise `CredentialsError` rather than overwrite keys.

    ``hosts``: more names and addresses of the server, for its certificate; ``site``: the users are of a remote site.
    ``signing``: a role's folder of the cluster, whose signing keys a site uses; None: fresh ones. ``policies``:
    the models that learners may train; with several, each learner has its own user.
    """
    out.mkdir(parents=True, exist_ok=True, mode=0o700)
    roles = [*LEAF_ROLES.values()] if site else [*make_permissions(policies)]
    if taken := next((name for name in (CONF, *PERMISSIONS, *roles) if (out / name).exists()), None):
        raise CredentialsError(
            f"{out / taken} exists: give another --out, or remove it, and with it what was let in by it"
        )
    if site and signing is None:
        raise CredentialsError(
            "a remote site uses the cluster's signing keys: give --signing, the cluster's folder `inference`"
        )
    signers = [*learner_roles(policies), *(role for role in SIGNER_ROLES if role != LEARNER)]
    keys = SigningKeys.read(signing) if signing is not None else SigningKeys.create(signers)
    authority = CertificateAuthority.create() if tls else None
    inference_api_key = new_key()
    identities = {}
    for role in roles:
        identities[role] = [_create_user(out / role, role, keys, authority)]
        if role in INFERENCE_KEY_ROLES:
            write_secret(out / role / INFERENCE_API_KEY, inference_api_key + "\n")
        yield f"{out / role}: what {role} is let in by"
    if authority is not None:
        directory = out / SERVER_DIR
        directory.mkdir(mode=0o700)
        authority.write(directory)
        names = list(dict.fromkeys([*LOCAL_NAMES, socket.gethostname(), *hosts]))
        authority.issue(directory, "lightningbus bus", SERVER, hosts=names)
        # Who comes as a server may do anything: a client's certificate must not be one for that door.
        routes = CertificateAuthority.create()
        routes.write(directory, ROUTE_PREFIX)
        routes.issue(directory, "lightningbus bus", SERVER, CLIENT, hosts=names, prefix=ROUTE_PREFIX)
        yield f"{directory}: the server's certificate, for {', '.join(names)}"
    server_conf(out, identities, policies, site)
    _write_policies(out, policies)
    yield f"{out / CONF}: who may do what, for the server; with TLS it holds passwords"


def _create_user(directory: Path, role: str, keys: SigningKeys, authority: CertificateAuthority | None) -> Identity:
    directory.mkdir(mode=0o700)
    credentials = {"inbox": inbox_prefix(role), **keys.write(directory, role)}
    if authority is None or role in LEAF_ROLES:  # a site's server comes with its nkey
        credentials |= new_nkey(directory)
    if role in LEAF_ROLES:
        write_leaf_conf(directory)
    if authority is not None:
        authority.write(directory)
        credentials |= {"ca": CA}
        if role in LEAF_ROLES:
            authority.issue(directory, f"lightningbus {role}", CLIENT)
            credentials |= {"cert": CERT, "key": KEY}
        else:
            credentials |= new_certificate(directory, role, authority)
    (directory / FILE).write_text(json.dumps(credentials, indent=2) + "\n")
    return identity_of(directory)


def server_conf(out: Path, identities: Mapping[str, Sequence[Identity]], policies: Sequence[str], site: bool) -> None:
    """Write the server's configuration: by which identities each role is let in, and its TLS where it has a place."""
    fragment = build_leaf_accounts(identities) if site else build_accounts(identities, make_permissions(policies))
    if (out / SERVER_DIR).exists():
        fragment += _tls((out / SERVER_DIR).resolve())
    (out / CONF).unlink(missing_ok=True)
    write_secret(out / CONF, f"# Users of a nats-server: `include` this file in its configuration.\n{fragment}")


def roles_of(out: Path, site: bool) -> list[str]:
    """List the roles that have a user here; raise `CredentialsError`."""
    return [*LEAF_ROLES.values()] if site else [*make_permissions(read_policies(out))]


def allow_policies(out: Path, policies: Sequence[str]) -> None:
    """Let learners train these models and no others, by users without TLS; the server reads it at its next start.

    A learner that has no user yet is given one. What former learners signed stays valid, their users are removed.
    """
    learners = learner_roles(policies)
    present = {file.parent.name for file in out.glob(f"{LEARNER}*/{FILE}")}
    if read_policies(out) == tuple(policies) and present == learners.keys():
        return
    for role in present - learners.keys():
        shutil.rmtree(out / role)
    add_users(out, [role for role in learners if role not in present], authority=None)
    server_conf(out, {role: [identity_of(out / role)] for role in make_permissions(policies)}, policies, site=False)
    _write_policies(out, policies)


def add_users(out: Path, roles: Sequence[str], authority: CertificateAuthority | None) -> None:
    """Create users of roles that have none yet; all roles learn the public keys of those that sign."""
    keys = SigningKeys.read(out / ADMIN).with_fresh(
        role for role in roles if role in SIGNER_ROLES or role.startswith(f"{LEARNER}-")
    )
    for file in out.glob(f"*/{FILE}"):
        keys.write_public(file.parent)
    for role in roles:
        shutil.rmtree(out / role, ignore_errors=True)  # left by an interrupted run
        _create_user(out / role, role, keys, authority)


def _write_policies(out: Path, policies: Sequence[str]) -> None:
    (out / POLICIES).write_text(json.dumps(list(policies)) + "\n")


def write_leaf_conf(directory: Path) -> None:
    """Write the seed in the form that a server's configuration includes."""
    (directory / LEAF_CONF).unlink(missing_ok=True)
    write_secret(directory / LEAF_CONF, f'nkey: "{read_secret(directory / NKEY, "nkey").strip()}"\n')


def _tls(directory: Path) -> str:
    files = {"cert_file": CERT, "key_file": KEY, "ca_file": CA}
    lines = "".join(f"  {name}: {json.dumps(str(directory / file))}\n" for name, file in files.items())
    checks = "  verify_and_map: true\n  handshake_first: true\n"
    return f"# Before its first word, and to clients with a certificate only.\ntls {{\n{lines}{checks}}}\n"
