"""JetStream's refusals of requests, as sentences that say what to do.

The numbers are those of nats-server's ``server/errors.json``.
"""

from nats.errors import Error as NatsError
from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NatsTimeoutError
from nats.js.errors import APIError

from lightningbus.bus.errors import FULL_ACCOUNT, FULL_STORAGE

NO_CLUSTER = 10074
NO_PEERS = 10005
NOT_ENABLED = frozenset([10039, 10076])
LASTING = frozenset([*FULL_STORAGE, 10039])
"""Refusals with the code of a server that is busy, which a retry does not help."""
ADVICE = {
    NO_CLUSTER: "this server is not in a cluster: leave out --replicas, or give the address of a cluster",
    NO_PEERS: "too few servers of the cluster can take it: give fewer --replicas, or add servers with room",
    FULL_ACCOUNT: "the account's limits are too small: raise them in the server's configuration",
    10026: "the account may have no more consumers: raise max_consumers in the server's configuration",
    10027: "the account may have no more streams: raise max_streams in the server's configuration",
    10065: "another stream has these subjects: remove it (`nats stream ls` lists it), or use an account without it",
    10113: "the account wants a size for every stream: leave out max_bytes_required in the server's configuration",
    10122: "the account limits the size of a stream: raise max_stream_bytes of the account, or give a smaller --size",
    **dict.fromkeys(FULL_STORAGE, "the server's storage is full: raise max_file_store in its configuration"),
    **dict.fromkeys(NOT_ENABLED, "start nats-server with JetStream (-js), and enable it for the account"),
}


def is_lasting(error: Exception) -> bool:
    """Return whether a retry of a request is useless although the server calls itself unavailable."""
    return isinstance(error, APIError) and error.err_code in LASTING


def explain_refusal(error: NatsError, num_bytes: int | None = None) -> str:
    """Explain a request's failure in a sentence; ``num_bytes``: storage that all streams need together."""
    if isinstance(error, NoRespondersError):
        return "JetStream does not answer: start nats-server with it (-js), then run `lightningbus provision`"
    if isinstance(error, NatsTimeoutError):
        return "JetStream did not answer in time: the server is busy, or its cluster has no leader; try again"
    if not isinstance(error, APIError) or error.description is None:
        return str(error).removeprefix("nats: ") or type(error).__name__
    number = error.err_code
    advice = ADVICE.get(number or 0, "its own log says more")
    if num_bytes is not None and number in {*FULL_STORAGE, FULL_ACCOUNT, NO_PEERS}:
        advice = f"the streams reserve {num_bytes / 2**30:.1f} GiB together, and weights come on top; {advice}"
        if number in FULL_STORAGE:
            advice += ", or give a smaller --size"
    return f"JetStream refuses it ({error.description}, error {number}): {advice}"
