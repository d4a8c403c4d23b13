"""Rights on the bus: one table, from which `lightningbus.bus.security.accounts` writes accounts and users. Pure.

A role may publish and subscribe to the subjects listed here and to nothing else; requests to JetStream are subjects
too. Each role has its own inbox prefix, so that no role receives another's answers.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from lightningbus.bus.streams.specs import (
    BUCKET,
    DEFAULT_POLICIES,
    GRADERS,
    STORE_CONSUMERS,
    STORE_EVENTS,
    ConsumerSpec,
    learner_consumer,
)
from lightningbus.schemas import subjects
from lightningbus.schemas.signers import LEARNER, learner_roles

API = "$JS.API"
EVERYTHING = ">"
CHUNKS, META = f"$O.{subjects.WEIGHT_BUCKET}.C.*", f"$O.{subjects.WEIGHT_BUCKET}.M.*"


@dataclass(frozen=True, slots=True)
class Permissions:
    """Subjects, with wildcards, of which no two of ``publish`` overlap: a message would be stored twice.

    ``max_connections`` are those of all users of the role together; None: the server's own limits.
    """

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    max_connections: int | None = None
    max_payload_bytes: int | None = None


def inbox_prefix(role: str) -> str:
    """Return the prefix of the subjects on which a role gets answers."""
    return f"_INBOX_{LEAF_ROLES.get(role, role)}"


def _consume(stream: str, durable: str) -> tuple[str, ...]:
    """List the rights to read a consumer's state, pull its messages, and settle them.

    Only ``admin`` creates one: a consumer can be made to deliver to any subject of the streams' account.
    """
    return (
        f"{API}.CONSUMER.INFO.{stream}.{durable}",
        f"{API}.CONSUMER.MSG.NEXT.{stream}.{durable}",
        f"$JS.ACK.{stream}.{durable}.>",
    )


_READ_WEIGHTS = (
    f"{API}.DIRECT.GET.{subjects.WEIGHTS}.{subjects.ALL_WEIGHTS}",
    f"{API}.DIRECT.GET.{subjects.WEIGHTS}.{subjects.ALL_RELEASES}",
)
_BATCH_GET = f"{API}.DIRECT.GET.{subjects.WEIGHTS}"
"""Read of older messages of the stream, by sequence and subject, which the request's body names."""
_READ_PROMPTS = (
    f"{API}.DIRECT.GET.{subjects.PROMPTS}.{subjects.ALL_PROMPTS}",
    f"{API}.DIRECT.GET.{subjects.PROMPTS}.{subjects.ALL_PROMPT_RELEASES}",
    f"{API}.DIRECT.GET.{subjects.PROMPTS}",
)
_READ_AUDITS = f"{API}.DIRECT.GET.{subjects.WEIGHTS}.{subjects.ALL_AUDITS}"
_READ_OBJECT_INFO = f"{API}.DIRECT.GET.{BUCKET}.{META}"
_READ_OBJECTS = (_READ_OBJECT_INFO, f"{API}.DIRECT.GET.{BUCKET}")
_LIST_OBJECTS = f"{API}.STREAM.INFO.{BUCKET}"
_WRITE_OBJECTS = (CHUNKS, META, _LIST_OBJECTS, f"{API}.STREAM.PURGE.{BUCKET}")

_ROLE_PERMISSIONS: Mapping[str, Permissions] = {
    "runner": Permissions(
        publish=(
            *_consume(subjects.TASKS, "*"),
            subjects.ALL_ROLLOUTS,
            subjects.ALL_GRADING_REQUESTS,
            subjects.TASK_PUBLISHED,
            subjects.dlq(subjects.TASKS),
            *_READ_PROMPTS,
            subjects.heartbeats("runner"),
        ),
        subscribe=(subjects.ALL_PROMPTS, subjects.ALL_PROMPT_RELEASES, subjects.heartbeats("inference")),
        max_connections=32_768,
    ),
    "grader": Permissions(
        publish=(
            *_consume(GRADERS.stream, GRADERS.durable),
            subjects.ALL_ROLLOUTS,
            subjects.ROLLOUT_GRADED,
            subjects.dlq(subjects.GRADING),
            subjects.heartbeats("grader"),
        ),
        subscribe=(subjects.heartbeats("grader"),),
        max_connections=256,
    ),
    "store": Permissions(
        publish=(
            *(right for consumer in STORE_CONSUMERS for right in _consume(consumer.stream, consumer.durable)),
            f"{API}.STREAM.INFO.{subjects.TASKS}",
            f"{API}.STREAM.INFO.{subjects.TRAIN_ROLLOUTS}",
            f"{API}.CONSUMER.NAMES.{subjects.TRAIN_ROLLOUTS}",
            f"{API}.CONSUMER.INFO.{GRADERS.stream}.{GRADERS.durable}",
            f"{API}.DIRECT.GET.{subjects.ALERTS}",
            subjects.ALERT,
            subjects.ALL_DLQ,
            subjects.heartbeats("store"),
        ),
        subscribe=(subjects.heartbeats("*"),),
        max_connections=16,
    ),
    LEARNER: Permissions(
        publish=(
            f"{API}.STREAM.INFO.{subjects.TRAIN_ROLLOUTS}",
            f"{API}.STREAM.INFO.{subjects.TASKS}",
            f"{API}.CONSUMER.INFO.{subjects.TASKS}.*",
            f"{API}.DIRECT.GET.{subjects.ALERTS}",
            subjects.ALERT,
            subjects.ALL_TASKS,
            subjects.ALL_EVENTS,
            subjects.ALL_DISPATCH_MARKS,
            f"{API}.DIRECT.GET.{subjects.DISPATCH}.{subjects.ALL_DISPATCH_MARKS}",
            *_READ_WEIGHTS,
            _BATCH_GET,
            _READ_AUDITS,
            f"{API}.STREAM.MSG.GET.{subjects.WEIGHTS}",
            f"{API}.STREAM.MSG.GET.{subjects.DISPATCH}",
            _READ_OBJECT_INFO,
            *_WRITE_OBJECTS,
            subjects.heartbeats("learner"),
        ),
        subscribe=(subjects.ALL_DISPATCHED, subjects.heartbeats("inference")),
        max_connections=256,
    ),
    "inference": Permissions(
        publish=(
            *_READ_WEIGHTS,
            _BATCH_GET,
            f"{API}.DIRECT.GET.{subjects.WEIGHTS}.{subjects.ALL_SWAP_LOCKS}",
            _READ_AUDITS,
            *_READ_OBJECTS,
            subjects.ALL_ACTIVATIONS,
            subjects.ALL_SWAP_LOCKS,
            subjects.ALL_RELEASES,
            subjects.heartbeats("inference"),
        ),
        subscribe=(
            subjects.ALL_WEIGHTS,
            subjects.ALL_RELEASES,
            subjects.ALL_SWAP_LOCKS,
            subjects.ALL_AUDITS,
            subjects.heartbeats("inference"),
        ),
        max_connections=8_192,
        max_payload_bytes=1024 * 1024,
    ),
    "auditor": Permissions(
        publish=(
            *_READ_WEIGHTS,
            _BATCH_GET,
            _READ_AUDITS,
            *_READ_OBJECTS,
            subjects.ALL_AUDITS,
            subjects.ALL_RELEASES,
            subjects.ROLLOUT_AUDITED,
            subjects.ALERT,
            subjects.heartbeats("auditor"),
        ),
        subscribe=(subjects.ALL_ROLLOUTS, subjects.heartbeats("inference")),
        max_connections=16,
        max_payload_bytes=1024 * 1024,
    ),
    "client": Permissions(
        publish=(
            subjects.ALL_TASKS,
            subjects.TASK_PUBLISHED,
            subjects.ROLLOUT_REVIEWED,
            f"{API}.STREAM.MSG.GET.{subjects.DLQ}",
            f"{API}.STREAM.INFO.{subjects.TASKS}",
            f"{API}.CONSUMER.INFO.{STORE_EVENTS.stream}.{STORE_EVENTS.durable}",
            *_READ_WEIGHTS,
            _BATCH_GET,
            _LIST_OBJECTS,
            _READ_OBJECT_INFO,
            *_READ_PROMPTS,
        ),
        subscribe=(subjects.heartbeats("*"), subjects.ALL_ROLLOUTS),
        max_connections=1_024,
    ),
    "admin": Permissions(publish=(EVERYTHING,), subscribe=(EVERYTHING,)),
}
HUB_DOMAIN = "hub"
"""JetStream's domain in a cluster with remote sites, by which their servers ask it."""
LEAF_ROLES: Mapping[str, str] = {f"leaf-{role}": role for role in ("runner", "inference")}
"""The users a remote site's server comes as, one for each role behind it, in that role's account."""


def via_hub_domain(what: Iterable[str]) -> tuple[str, ...]:
    """Rewrite JetStream subjects to the hub's domain: a remote site's server renames before it checks permissions."""
    return tuple(each.replace(f"{API}.", f"$JS.{HUB_DOMAIN}.API.") for each in what)


def make_permissions(policies: Iterable[str] = DEFAULT_POLICIES) -> Mapping[str, Permissions]:
    """Build the permissions by role where learners train these models; each learner has a right to its own model only.

    One learner is ``learner``, of several each is ``learner-MODEL``. ``client`` publishes tasks and reviews and reads;
    ``admin`` makes streams and consumers and may do anything with them; a leaf is a remote site's server, which
    publishes and receives for its runners, or its nodes.
    """
    learners = learner_roles(policies)
    readers = [learner_consumer(model) for model in learners.values()]
    infos = [f"{API}.CONSUMER.INFO.{reader.stream}.{reader.durable}" for reader in readers]
    store = _ROLE_PERMISSIONS["store"]
    roles = {
        **{role: permissions for role, permissions in _ROLE_PERMISSIONS.items() if role != LEARNER},
        "store": replace(store, publish=(*store.publish, *infos, *map(_reset, readers))),
        **{role: _learner_permissions(model) for role, model in learners.items()},
    }
    leaves = {
        leaf: replace(roles[role], publish=via_hub_domain(roles[role].publish)) for leaf, role in LEAF_ROLES.items()
    }
    return {**roles, **leaves}


def _learner_permissions(model: str) -> Permissions:
    learner, reader, weights = _ROLE_PERMISSIONS[LEARNER], learner_consumer(model), subjects.weights(model)
    return replace(
        learner,
        publish=(*learner.publish, *_consume(reader.stream, reader.durable), _reset(reader), weights),
        subscribe=(*learner.subscribe, weights),
    )


def _reset(reader: ConsumerSpec) -> str:
    return f"{API}.CONSUMER.RESET.{reader.stream}.{reader.durable}"


PERMISSIONS = make_permissions()
"""Those where one model is trained, of the usual name."""
