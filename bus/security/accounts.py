"""The accounts of a nats-server, generated from the table of rights. Pure.

One account holds the streams. Each role has its own account, which receives only what is exported to it by name, and
sends out only what it imports. So the answer to a request stays within the requester's account, even if its reply
subject names another place in the streams' account.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lightningbus.bus.security.permissions import (
    API,
    LEAF_ROLES,
    PERMISSIONS,
    Permissions,
    inbox_prefix,
    via_hub_domain,
)

Identities = Mapping[str, Sequence[Mapping[str, str]]]
"""Users by role, in the form of `lightningbus.bus.security.identities`."""
BUS = "BUS"
"""The account that holds the streams; ``admin`` is in it."""
ADMIN = "admin"
STREAMED_RESPONSES = re.compile(r"\$JS\.API\.(CONSUMER\.MSG\.NEXT\.|DIRECT\.GET\.[^.]+$)")
"""Pulls, and Direct Gets whose body asks for several messages."""
NOT_AUDITED = re.compile(r"\$JS\.API\.(CONSUMER\.MSG\.NEXT|DIRECT\.GET)\.")
"""Requests that JetStream publishes no advisory of."""
RESPONSE_SECONDS = 20
"""After so long without an answer a request for many is over; a pull is answered each 5 s, by a heartbeat at least."""
UNUSED_SUBJECT = "lb.nowhere"
"""Dummy target for `$JS.API.INFO`. Without it JetStream answers every request of the role with "no account"."""
MAX_SUBSCRIPTIONS = 1000
"""Subscriptions that one connection of a role may have."""


@dataclass
class Account:
    """One account of the configuration."""

    users: list[dict[str, Any]] = field(default_factory=list)
    exports: list[dict[str, Any]] = field(default_factory=list)
    imports: list[dict[str, Any]] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)

    def to_config(self) -> dict[str, Any]:
        """Render the account in the form that the server reads."""
        return {"users": self.users, "exports": self.exports, "imports": self.imports, **self.extra}


def account_name(role: str) -> str:
    """Name the account of a role's users; a model's name in it keeps its case, so that names stay distinct."""
    kind, dash, model = LEAF_ROLES.get(role, role).partition("-")
    return BUS if role == ADMIN else f"{kind.upper()}{dash}{model}"


def build_accounts(identities: Identities, permissions: Mapping[str, Permissions] = PERMISSIONS) -> str:
    """Build the server's ``accounts`` block for users by role; ``permissions`` as `make_permissions` gives them."""
    roles = [role for role in identities if role not in LEAF_ROLES and role != ADMIN]
    block = {account_name(role): Account(extra={"limits": _limits(permissions[role])}) for role in roles}
    block[BUS] = Account(extra={"jetstream": "enabled"})
    for role, keys in identities.items():
        block[account_name(role)].users += [_user(key, permissions[role], inbox_prefix(role)) for key in keys]
    _share(block, roles, permissions)
    block[BUS].exports.append({"service": UNUSED_SUBJECT, "accounts": [account_name(role) for role in roles]})
    for role in roles:
        block[account_name(role)].imports.append(
            {"service": {"account": BUS, "subject": UNUSED_SUBJECT}, "to": f"{API}.INFO"}
        )
    for subject, to in _by_subject((role, permissions[role].publish) for role in roles):
        block[BUS].exports.append({"service": subject, "accounts": to, **_response_options(subject)})
        for name in to:
            block[name].imports.append({"service": {"account": BUS, "subject": subject}, **_latency_options(subject)})
    for subject, to in _by_subject((role, permissions[role].subscribe) for role in roles):
        block[BUS].exports.append({"stream": subject, "accounts": to})
        for name in to:
            block[name].imports.append({"stream": {"account": BUS, "subject": subject}})
    return _render(block)


def build_leaf_accounts(identities: Identities) -> str:
    """Build the accounts of a remote site's server, whose JetStream is the hub's, over leaf connections."""
    block = {account_name(role): Account(extra={"limits": _limits(PERMISSIONS[role])}) for role in identities}
    for role, keys in identities.items():
        permissions = replace(PERMISSIONS[role], publish=via_hub_domain(PERMISSIONS[role].publish))
        block[account_name(role)].users += [_user(key, permissions, inbox_prefix(role)) for key in keys]
    _share(block, list(identities), PERMISSIONS)  # its runners hear its nodes even while the link to the hub is cut
    return _render(block)


def is_within(subject: str, filter: str) -> bool:
    """Return whether a filter covers every subject that ``subject``, maybe with wildcards, matches."""
    parts, wanted = subject.split("."), filter.split(".")
    if wanted[-1] == ">":
        return len(parts) >= len(wanted) and is_within(".".join(parts[: len(wanted) - 1]), ".".join(wanted[:-1]))
    return (
        len(parts) == len(wanted)
        and ">" not in parts
        and all(want in ("*", part) for part, want in zip(parts, wanted, strict=True))
    )


def _share(block: Mapping[str, Account], roles: Iterable[str], permissions: Mapping[str, Permissions]) -> None:
    """Export to each role's subscribers what other roles publish, directly from account to account."""
    names = list(roles)
    for role in names:
        for subject in permissions[role].publish:
            hearing = [
                account_name(other)
                for other in names
                if other != role and any(is_within(subject, each) for each in permissions[other].subscribe)
            ]
            if hearing:
                block[account_name(role)].exports.append({"stream": subject, "accounts": hearing})
                for name in hearing:
                    block[name].imports.append({"stream": {"account": account_name(role), "subject": subject}})


def _by_subject(permissions: Iterable[tuple[str, tuple[str, ...]]]) -> Iterator[tuple[str, list[str]]]:
    """Group subjects with the accounts that have a right to each."""
    accounts: dict[str, list[str]] = {}
    for role, subjects in permissions:
        for subject in subjects:
            accounts.setdefault(subject, []).append(account_name(role))
    yield from accounts.items()


def _response_options(subject: str) -> dict[str, str]:
    if not STREAMED_RESPONSES.match(subject):
        return {}
    return {"response_type": "stream", "threshold": f"{RESPONSE_SECONDS}s"}


def _latency_options(subject: str) -> dict[str, bool]:
    """Choose the options of an import: JetStream's audit records then name the user and its address."""
    return {"share": True} if subject.startswith(API) and not NOT_AUDITED.match(subject) else {}


def _limits(permissions: Permissions) -> dict[str, int]:
    limits = {
        "max_connections": permissions.max_connections,
        "max_payload": permissions.max_payload_bytes,
        "max_subs": MAX_SUBSCRIPTIONS,
    }
    return {name: value for name, value in limits.items() if value is not None}


def _user(identity: Mapping[str, str], permissions: Permissions, prefix: str) -> dict[str, Any]:
    # The second wall: what a role may not say does not even leave its connection, and is an error at once.
    config = {
        "publish": {"allow": list(permissions.publish)},
        "subscribe": {"allow": [*permissions.subscribe, f"{prefix}.>"]},
    }
    return {**identity, "permissions": config}


def _render(block: Mapping[str, Account]) -> str:
    # JSON is read by the server's configuration too.
    return f"accounts: {json.dumps({name: account.to_config() for name, account in block.items()}, indent=2)}\n"
