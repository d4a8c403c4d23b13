"""Which node a model call goes to."""

from lightningbus.runners.gateway.engines import routing
from lightningbus.schemas.fleet import Heartbeat


def node(id: str, state: str = "ready", version: int = 1, inflight: int = 0, **detail: object) -> Heartbeat:
    return Heartbeat(
        role="inference",
        id=id,
        state=state,
        address=f"http://{id}",
        model="policy",
        version=version,
        status={"inflight": inflight, **detail},
        sent_at_ns=1,
    )


def chosen(
    nodes: list[Heartbeat],
    rollout: str = "r",
    last: str = "",
    pinned: int | None = None,
    model: str = "policy",
    preferred: int | None = None,
    **open_calls: int,
) -> str | None:
    actual = routing.select_node(nodes, model, rollout, last, pinned, lambda id: open_calls.get(id, 0), preferred)
    return actual.id if actual else None


def test_a_rollout_stays_with_its_node_and_a_new_one_goes_where_least_is_done() -> None:
    nodes = [node("a", inflight=3), node("b", inflight=1), node("c", inflight=2)]
    assert chosen(nodes) == "b"
    assert chosen(nodes, last="a") == "a"
    assert chosen(nodes, b=5) == "c", "what this runner has just sent counts before the node says so"
    assert chosen([node("a", "suspect"), node("b", inflight=9)], last="a") == "b"
    equal = [node(name) for name in "abcd"]
    assert {chosen(equal, rollout=f"r{n}") for n in range(50)} == set("abcd")


def test_only_ready_nodes_of_the_model_and_the_pinned_version_are_chosen() -> None:
    assert chosen([node("a", "awaiting_weights")]) is None
    assert chosen([node("a")], model="other") is None
    assert chosen([node("a", version=2)], pinned=1) is None
    assert chosen([node("a", version=2), node("b", version=1)], pinned=1) == "b"


def test_a_version_held_beside_the_newest_is_found() -> None:
    beside = node("c", version=3, inflight=9, versions=[1, 2, 3])
    assert chosen([node("a", version=3), node("b"), beside], pinned=2) == "c"
    assert chosen([node("a", version=3), beside], last="a", preferred=2) == "c", "before the node that answered last"
    assert chosen([node("a", version=3), beside], last="c", preferred=2) == "c"
    assert chosen([node("a", version=3), beside], last="a", preferred=0) == "a", "nobody has it: as without a wish"
    assert chosen([node("a", version=3), beside], pinned=3, preferred=2) == "a"
    assert chosen([node("a", version=3, versions="what?")], pinned=2) is None
    assert chosen([node("a", version=3, versions=[1, 2])], pinned=3) is None, "its newest was revoked"
