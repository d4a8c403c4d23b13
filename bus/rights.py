"""Who may do what on the bus: one table, from which a server's users are written. Pure.

A role may publish and subscribe to what stands here and to nothing else; requests to JetStream are subjects too. Each
role has an inbox prefix of its own, so that no role hears what another is answered.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from bus.streams import BUCKET, LEARNER_ROLLOUTS, STORE_CONSUMERS, STREAMS, Consumer
from schemas import subjects

API = "$JS.API"
EVERYTHING = ">"
CHUNKS, META = f"$O.{subjects.WEIGHT_BUCKET}.C.*", f"$O.{subjects.WEIGHT_BUCKET}.M.*"


@dataclass(frozen=True, slots=True)
class Rights:
    """Subjects, with wildcards; ``denied`` are left out of what may be published."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    denied: tuple[str, ...] = ()


def inbox(role: str) -> str:
    """Prefix of the subjects a role is answered on."""
    return f"_INBOX_{role}"


def _pulls(stream: str, durable: str) -> tuple[str, ...]:
    """Ask a consumer for messages, and settle them."""
    return f"{API}.CONSUMER.MSG.NEXT.{stream}.{durable}", f"$JS.ACK.{stream}.{durable}.>"


def _makes(consumer: Consumer) -> str:
    """Make or bring up to date exactly such a consumer: its filter is part of the request's subject."""
    own = f"{API}.CONSUMER.CREATE.{consumer.stream}.{consumer.durable}"
    return own if consumer.filter == EVERYTHING else f"{own}.{consumer.filter}"


def _reads(consumer: Consumer) -> tuple[str, ...]:
    return _makes(consumer), *_pulls(consumer.stream, consumer.durable)


_LOOKS_AT_WEIGHTS = (
    f"{API}.DIRECT.GET.{subjects.WEIGHTS}.{subjects.ALL_WEIGHTS}",
    f"{API}.DIRECT.GET.{subjects.WEIGHTS}.{subjects.ALL_RELEASES}",
)
_LOOKS_BACK = f"{API}.DIRECT.GET.{subjects.WEIGHTS}"
"""Older messages of the stream, by sequence and subject: what to look for stands in the request."""
_LOOKS_AT_BLOBS = f"{API}.DIRECT.GET.{BUCKET}.{META}"
_READS_BLOBS = (
    *_reads(Consumer(BUCKET, "*", CHUNKS)),
    f"{API}.CONSUMER.DELETE.{BUCKET}.*",
)
_WRITES_BLOBS = (CHUNKS, META, f"{API}.STREAM.INFO.{BUCKET}", f"{API}.STREAM.PURGE.{BUCKET}")

_OF_ROLES: Mapping[str, Rights] = {
    "runner": Rights(
        publish=(
            *_reads(Consumer(subjects.TASKS, "*", subjects.task("*", "*"))),
            subjects.ALL_ROLLOUTS,
            subjects.TASK_PUBLISHED,
            subjects.dead(subjects.TASKS),
            subjects.heartbeats("runner"),
        ),
        subscribe=(subjects.heartbeats("inference"),),
    ),
    "store": Rights(
        publish=(
            *(right for consumer in STORE_CONSUMERS for right in _reads(consumer)),
            f"{API}.STREAM.INFO.{subjects.TASKS}",
            subjects.ALERT,
            subjects.ALL_DEAD,
            subjects.heartbeats("store"),
        ),
        subscribe=(subjects.heartbeats("*"),),
    ),
    "learner": Rights(
        publish=(
            *_pulls(LEARNER_ROLLOUTS.stream, LEARNER_ROLLOUTS.durable),
            f"{API}.CONSUMER.RESET.{LEARNER_ROLLOUTS.stream}.{LEARNER_ROLLOUTS.durable}",
            f"{API}.CONSUMER.INFO.{LEARNER_ROLLOUTS.stream}.{LEARNER_ROLLOUTS.durable}",
            f"{API}.STREAM.INFO.{LEARNER_ROLLOUTS.stream}",
            f"{API}.STREAM.INFO.{subjects.TASKS}",
            subjects.ALERT,
            subjects.ALL_TASKS,
            subjects.ALL_EVENTS,
            subjects.ALL_WEIGHTS,
            *_LOOKS_AT_WEIGHTS,
            _LOOKS_BACK,
            _LOOKS_AT_BLOBS,
            *_WRITES_BLOBS,
            subjects.heartbeats("learner"),
        ),
        subscribe=(subjects.ALL_WEIGHTS, subjects.heartbeats("inference")),
    ),
    "node": Rights(
        publish=(
            *_LOOKS_AT_WEIGHTS,
            _LOOKS_BACK,
            f"{API}.DIRECT.GET.{subjects.WEIGHTS}.{subjects.ALL_TURNS}",
            _LOOKS_AT_BLOBS,
            *_READS_BLOBS,
            subjects.ALL_APPLIED,
            subjects.ALL_TURNS,
            subjects.ALL_RELEASES,
            subjects.heartbeats("inference"),
        ),
        subscribe=(
            subjects.ALL_WEIGHTS,
            subjects.ALL_RELEASES,
            subjects.ALL_TURNS,
            subjects.heartbeats("inference"),
        ),
    ),
    "client": Rights(
        publish=(
            subjects.ALL_TASKS,
            subjects.TASK_PUBLISHED,
            f"{API}.STREAM.MSG.GET.{subjects.DEAD}",
            f"{API}.STREAM.INFO.{subjects.TASKS}",
            *_LOOKS_AT_WEIGHTS,
            _LOOKS_BACK,
        ),
        subscribe=(subjects.heartbeats("*"), subjects.ALL_ROLLOUTS),
    ),
    "admin": Rights(publish=(EVERYTHING,), subscribe=(EVERYTHING,)),
}
HUB = "hub"
"""JetStream's domain in a cluster with far sites, by which their servers ask it."""
AT_A_SITE = ("runner", "node")


def from_afar(what: Iterable[str]) -> tuple[str, ...]:
    """What is published at a far site, as its server names it before it looks whether one may: the hub's JetStream."""
    return tuple(dict.fromkeys(one.replace(f"{API}.", f"$JS.{HUB}.API.") for one in what))


RIGHTS: Mapping[str, Rights] = {
    **_OF_ROLES,
    "leaf": Rights(
        # It hears of whole subscriptions or of none: so all that streams and fleets listen to, less what is others'.
        publish=(
            *from_afar(one for role in AT_A_SITE for one in _OF_ROLES[role].publish),
            subjects.ALL_ROLLOUTS,
            subjects.ALL_DEAD,
            subjects.heartbeats("*"),
        ),
        denied=(
            *(subjects.dead(str(stream.name)) for stream in STREAMS if stream.name not in (subjects.TASKS, BUCKET)),
            *(subjects.heartbeats(role) for role in ("store", "learner")),
        ),
        subscribe=tuple(
            dict.fromkeys(one for role in AT_A_SITE for one in (*_OF_ROLES[role].subscribe, f"{inbox(role)}.>"))
        ),
    ),
}
"""``client`` puts tasks in and looks on; ``admin`` makes the streams and may do anything in them; ``leaf`` is a far
site's server, which says what its runners and nodes say and hears what they are sent."""


def authorization(identities: Mapping[str, Sequence[Mapping[str, str]]], site: bool = False) -> str:
    """The server's ``authorization`` block for users by role; ``identities`` are those of `bus.identities`.

    ``site``: it is the server of a far site, whose JetStream is the hub's.
    """
    rights = {
        role: replace(RIGHTS[role], publish=from_afar(RIGHTS[role].publish)) if site else RIGHTS[role]
        for role in identities
    }
    lines = [_user(each, rights[role], inbox(role)) for role, several in identities.items() for each in several]
    users = ",\n".join(f"    {line}" for line in lines)
    return f"authorization {{\n  users: [\n{users}\n  ]\n}}\n"


def _user(identity: Mapping[str, str], rights: Rights, prefix: str) -> str:
    # JSON is read by the server's configuration too.
    permissions = {
        "publish": {"allow": list(rights.publish), **({"deny": list(rights.denied)} if rights.denied else {})},
        "subscribe": {"allow": [*rights.subscribe, f"{prefix}.>"]},
    }
    return json.dumps({**identity, "permissions": permissions})
