"""Who may do what on the bus: one table, from which `bus.security.accounts` writes a server's accounts and users. Pure.

A role may publish and subscribe to what stands here and to nothing else; requests to JetStream are subjects too. Each
role has an inbox prefix of its own, so that no role hears what another is answered.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from bus.streams import BUCKET, LEARNER_ROLLOUTS, ROLLOUT_READERS, STORE_CONSUMERS
from schemas import subjects

API = "$JS.API"
EVERYTHING = ">"
CHUNKS, META = f"$O.{subjects.WEIGHT_BUCKET}.C.*", f"$O.{subjects.WEIGHT_BUCKET}.M.*"


@dataclass(frozen=True, slots=True)
class Rights:
    """Subjects, with wildcards, of which no two of ``publish`` overlap: a message would be taken twice.

    ``connections`` at once of all who have them, and ``payload``, the bytes of a message; None: the server's own.
    """

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    connections: int | None = None
    payload: int | None = None


def inbox(role: str) -> str:
    """Prefix of the subjects a role is answered on."""
    return f"_INBOX_{LEAVES.get(role, role)}"


def _pulls(stream: str, durable: str) -> tuple[str, ...]:
    """Look at a consumer, ask it for messages, and settle them.

    Nobody but ``admin`` makes one: a consumer can be made to deliver to any subject of the streams' account.
    """
    return (
        f"{API}.CONSUMER.INFO.{stream}.{durable}",
        f"{API}.CONSUMER.MSG.NEXT.{stream}.{durable}",
        f"$JS.ACK.{stream}.{durable}.>",
    )


_LOOKS_AT_WEIGHTS = (
    f"{API}.DIRECT.GET.{subjects.WEIGHTS}.{subjects.ALL_WEIGHTS}",
    f"{API}.DIRECT.GET.{subjects.WEIGHTS}.{subjects.ALL_RELEASES}",
)
_LOOKS_BACK = f"{API}.DIRECT.GET.{subjects.WEIGHTS}"
"""Older messages of the stream, by sequence and subject: what to look for stands in the request."""
_LOOKS_AT_BLOBS = f"{API}.DIRECT.GET.{BUCKET}.{META}"
_READS_BLOBS = (_LOOKS_AT_BLOBS, f"{API}.DIRECT.GET.{BUCKET}")
_WRITES_BLOBS = (CHUNKS, META, f"{API}.STREAM.INFO.{BUCKET}", f"{API}.STREAM.PURGE.{BUCKET}")

_OF_ROLES: Mapping[str, Rights] = {
    "runner": Rights(
        publish=(
            *_pulls(subjects.TASKS, "*"),
            subjects.ALL_ROLLOUTS,
            subjects.TASK_PUBLISHED,
            subjects.dlq(subjects.TASKS),
            subjects.heartbeats("runner"),
        ),
        subscribe=(subjects.heartbeats("inference"),),
        connections=32_768,
    ),
    "store": Rights(
        publish=(
            *(right for consumer in STORE_CONSUMERS for right in _pulls(consumer.stream, consumer.durable)),
            f"{API}.STREAM.INFO.{subjects.TASKS}",
            *(
                f"{API}.CONSUMER.INFO.{reader.stream}.{reader.durable}"
                for reader in ROLLOUT_READERS
                if reader not in STORE_CONSUMERS
            ),
            subjects.ALERT,
            subjects.ALL_DLQ,
            subjects.heartbeats("store"),
        ),
        subscribe=(subjects.heartbeats("*"),),
        connections=16,
    ),
    "learner": Rights(
        publish=(
            *_pulls(LEARNER_ROLLOUTS.stream, LEARNER_ROLLOUTS.durable),
            f"{API}.CONSUMER.RESET.{LEARNER_ROLLOUTS.stream}.{LEARNER_ROLLOUTS.durable}",
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
        connections=256,
    ),
    "node": Rights(
        publish=(
            *_LOOKS_AT_WEIGHTS,
            _LOOKS_BACK,
            f"{API}.DIRECT.GET.{subjects.WEIGHTS}.{subjects.ALL_SWAP_LOCKS}",
            *_READS_BLOBS,
            subjects.ALL_ACTIVATIONS,
            subjects.ALL_SWAP_LOCKS,
            subjects.ALL_RELEASES,
            subjects.heartbeats("inference"),
        ),
        subscribe=(
            subjects.ALL_WEIGHTS,
            subjects.ALL_RELEASES,
            subjects.ALL_SWAP_LOCKS,
            subjects.heartbeats("inference"),
        ),
        connections=8_192,
        payload=1024 * 1024,
    ),
    "client": Rights(
        publish=(
            subjects.ALL_TASKS,
            subjects.TASK_PUBLISHED,
            f"{API}.STREAM.MSG.GET.{subjects.DLQ}",
            f"{API}.STREAM.INFO.{subjects.TASKS}",
            *_LOOKS_AT_WEIGHTS,
            _LOOKS_BACK,
        ),
        subscribe=(subjects.heartbeats("*"), subjects.ALL_ROLLOUTS),
        connections=1_024,
    ),
    "admin": Rights(publish=(EVERYTHING,), subscribe=(EVERYTHING,)),
}
HUB = "hub"
"""JetStream's domain in a cluster with far sites, by which their servers ask it."""
LEAVES: Mapping[str, str] = {f"leaf-{role}": role for role in ("runner", "node")}
"""The users a far site's server comes as, one for each role behind it, in that role's account."""


def from_afar(what: Iterable[str]) -> tuple[str, ...]:
    """What is published at a far site, as its server names it before it looks whether one may: the hub's JetStream."""
    return tuple(each.replace(f"{API}.", f"$JS.{HUB}.API.") for each in what)


RIGHTS: Mapping[str, Rights] = {
    **_OF_ROLES,
    **{leaf: replace(_OF_ROLES[role], publish=from_afar(_OF_ROLES[role].publish)) for leaf, role in LEAVES.items()},
}
"""``client`` puts tasks in and looks on; ``admin`` makes streams and consumers and may do anything with them; a leaf is
a far site's server, which says what its runners, or nodes, say and hears what they are sent."""
